#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "base/unique_fd.h"

namespace lockstep::test {

// From now on the kernel asks whoever holds the returned descriptor about these system calls, of
// the thread that calls this and of all that it starts: seccomp's user notification. Readable: a
// call waits. It cannot be taken back.
inline base::UniqueFd supervise_calls(const std::vector<int>& numbers) {
  std::vector<sock_filter> code{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const int number : numbers) {
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    throw std::system_error(errno, std::generic_category(), "PR_SET_NO_NEW_PRIVS");
  }
  base::UniqueFd listener(static_cast<int>(
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program)));
  if (!listener) throw std::system_error(errno, std::generic_category(), "seccomp");
  return listener;
}

// The text at an address of a thread that is stopped in such a call.
inline std::string text_in(pid_t thread, uint64_t address) {
  std::array<char, PATH_MAX> text{};
  // Up to the end of its page: what follows may not be there.
  size_t read = 0;
  while (read < text.size() - 1) {
    const uint64_t page = 4096 - (address + read) % 4096;
    iovec local{text.data() + read, std::min<size_t>(page, text.size() - 1 - read)};
    iovec remote{reinterpret_cast<void*>(address + read), local.iov_len};
    if (::process_vm_readv(thread, &local, 1, &remote, 1, 0) <= 0) break;
    if (std::memchr(local.iov_base, 0, local.iov_len) != nullptr) break;
    read += local.iov_len;
  }
  return text.data();
}

}  // namespace lockstep::test
