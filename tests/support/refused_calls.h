#pragma once

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::test {

// A system call, and with `second_argument` only those calls that have it.
struct RefusedCall {
  uint32_t number;
  int error;
  std::optional<uint32_t> second_argument = std::nullopt;
};

// From now on the call fails with that error, as another kernel or a container would have it: in
// the thread that calls this and in those that it starts. It cannot be taken back, so tests give
// a thread of its own to it.
inline void refuse_call(const RefusedCall& call) {
  const uint8_t skipped = call.second_argument ? 3 : 1;
  std::vector<sock_filter> code = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call.number, 0, skipped),
  };
  if (call.second_argument) {
    code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + sizeof(uint64_t)));
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, *call.second_argument, 0, 1));
  }
  code.push_back(
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (static_cast<uint32_t>(call.error) & SECCOMP_RET_DATA)));
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), 0);
}

}  // namespace lockstep::test
