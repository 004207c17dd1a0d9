#include "base/event_loop.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace lockstep::base {
namespace {

constexpr std::chrono::hours kLongest{24};

void control(int epoll, int operation, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll, operation, fd, &event) != 0) {
    throw InternalError("base", fmt::format("epoll_ctl({}) of descriptor {} failed: {}", operation, fd,
                                            std::strerror(errno)));
  }
}

}  // namespace

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_)
    throw ConfigError("base", fmt::format("cannot create an epoll descriptor: {}", std::strerror(errno)));
  posted_fd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!posted_fd_)
    throw ConfigError("base", fmt::format("cannot create an event descriptor: {}", std::strerror(errno)));
  watch(posted_fd_.get(), EPOLLIN, [this](uint32_t) { serve_posted(); });
}

void EventLoop::watch(int fd, uint32_t events, FdCallback callback) {
  control(epoll_.get(), EPOLL_CTL_ADD, fd, events);
  callbacks_[fd] = std::make_shared<FdCallback>(std::move(callback));
}

void EventLoop::change(int fd, uint32_t events) { control(epoll_.get(), EPOLL_CTL_MOD, fd, events); }

void EventLoop::forget(int fd) {
  if (callbacks_.erase(fd) > 0) control(epoll_.get(), EPOLL_CTL_DEL, fd, 0);
}

EventLoop::Timer EventLoop::at(Clock::time_point time, std::function<void()> callback) {
  const Timer timer{time, next_timer_++};
  timers_.emplace(timer, std::move(callback));
  return timer;
}

void EventLoop::cancel(const Timer& timer) { timers_.erase(timer); }

void EventLoop::post(std::function<void()> callback) {
  const MutexLock lock(posted_mutex_);
  posted_.push_back(std::move(callback));
  ::eventfd_write(posted_fd_.get(), 1);
}

void EventLoop::serve_posted() {
  while (!stopped_) {
    std::function<void()> callback;
    {
      const MutexLock lock(posted_mutex_);
      if (posted_.empty()) {
        eventfd_t count = 0;
        ::eventfd_read(posted_fd_.get(), &count);
        return;
      }
      callback = std::move(posted_.front());
      posted_.pop_front();
    }
    // Not under the lock, because the callback may post. If it throws, the descriptor stays readable for
    // the callbacks that are left.
    callback();
  }
}

void EventLoop::run() {
  stopped_ = false;
  while (!stopped_) run_once(kLongest);
}

void EventLoop::run_once(Clock::duration max_wait) {
  std::array<epoll_event, 256> events;
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms(max_wait));
  for (int i = 0; i < count && !stopped_; ++i) {
    // An earlier callback of this loop may have forgotten this descriptor.
    const auto found = callbacks_.find(events[i].data.fd);
    if (found == callbacks_.end()) continue;
    const std::shared_ptr<FdCallback> callback = found->second;
    (*callback)(events[i].events);
  }
  serve_timers();
}

int EventLoop::wait_ms(Clock::duration max_wait) const {
  Clock::duration wait = max_wait;
  if (!timers_.empty()) wait = std::min(wait, timers_.begin()->first.first - Clock::now());
  return static_cast<int>(std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(wait).count()));
}

// Takes the time once, so that a timer that schedules itself again for now does not starve the rest.
void EventLoop::serve_timers() {
  const Clock::time_point now = Clock::now();
  while (!stopped_ && !timers_.empty() && timers_.begin()->first.first <= now) {
    auto timer = timers_.extract(timers_.begin());
    timer.mapped()();
  }
}

}  // namespace lockstep::base
