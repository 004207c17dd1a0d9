#include "support/held_calls.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/unique_fd.h"

namespace lockstep::test {
namespace {

// In the thread that calls this and in all that it starts. Readable: a call waits.
base::UniqueFd supervise_calls(const std::vector<int>& numbers) {
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

std::string path_of(const seccomp_notif& call) {
  const uint64_t address =
      call.data.nr == SYS_mkdirat || call.data.nr == SYS_openat ? call.data.args[1] : call.data.args[0];
  const base::UniqueFd memory(
      ::open(("/proc/" + std::to_string(call.pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text{};
  // A path near the end of its mapping is read up to there.
  for (size_t at = 0; at + 1 < text.size(); ++at) {
    if (::pread(memory.get(), &text[at], 1, static_cast<off_t>(address + at)) != 1 || text[at] == '\0') break;
  }
  return text.data();
}

}  // namespace

struct HeldCalls::Impl {
  void serve() {
    while (true) {
      std::array<pollfd, 2> ready{pollfd{listener.get(), POLLIN, 0}, pollfd{stop.get(), POLLIN, 0}};
      if (::poll(ready.data(), ready.size(), -1) < 0) continue;
      if (ready[1].revents != 0) return;
      if ((ready[0].revents & POLLIN) == 0) continue;
      seccomp_notif call{};
      if (::ioctl(listener.get(), SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) continue;
      const bool matches = path_of(call).find(path) != std::string::npos;
      const std::lock_guard lock(mutex);
      if (matches && !released) {
        held.push_back(call.id);
        changed.notify_all();
      } else {
        let_go(call.id);
      }
    }
  }
  void let_go(uint64_t id) const {
    seccomp_notif_resp answer{};
    answer.id = id;
    answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    // A process that was killed meanwhile does not wait any more.
    ::ioctl(listener.get(), SECCOMP_IOCTL_NOTIF_SEND, &answer);
  }

  std::string path;
  base::UniqueFd listener;
  base::UniqueFd stop{::eventfd(0, EFD_CLOEXEC)};
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<uint64_t> held;
  bool released = false;
  std::thread supervisor;
};

HeldCalls::HeldCalls(const std::vector<int>& numbers, std::string path, const std::function<void()>& start)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
  std::promise<void> listening, supervised;
  std::packaged_task<void()> task([&] {
    impl_->listener = supervise_calls(numbers);
    listening.set_value();
    supervised.get_future().wait();
    start();
  });
  std::future<void> started = task.get_future();
  // Filters cannot be taken back: a thread of its own has them. Not the supervisor, whose calls
  // nobody would let go on.
  std::thread starter(std::move(task));
  if (listening.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready) {
    impl_->supervisor = std::thread([impl = impl_.get()] { impl->serve(); });
  }
  supervised.set_value();
  starter.join();
  started.get();
}

HeldCalls::~HeldCalls() {
  release();
  ::eventfd_write(impl_->stop.get(), 1);
  if (impl_->supervisor.joinable()) impl_->supervisor.join();
}

void HeldCalls::wait_for(int count) {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [&] { return static_cast<int>(impl_->held.size()) >= count; });
}

void HeldCalls::release() {
  const std::lock_guard lock(impl_->mutex);
  impl_->released = true;
  for (const uint64_t id : impl_->held) impl_->let_go(id);
  impl_->held.clear();
}

}  // namespace lockstep::test
