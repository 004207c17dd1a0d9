#include "support/held_calls.h"

#include <linux/seccomp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "base/unique_fd.h"
#include "support/supervised_calls.h"

namespace lockstep::test {
namespace {

std::string path_of(const seccomp_notif& call) {
  const uint64_t address =
      call.data.nr == SYS_mkdirat || call.data.nr == SYS_openat ? call.data.args[1] : call.data.args[0];
  return text_in(static_cast<pid_t>(call.pid), address);
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
