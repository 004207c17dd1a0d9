#include "launch/supervisor.h"

#include <lockstep/exit_status.h>
#include <poll.h>

#include <algorithm>
#include <csignal>

#include "base/log.h"
#include "launch/signal_queue.h"

namespace lockstep::launcher {
namespace {

using Clock = std::chrono::steady_clock;

// Only where the kernel has no pidfd to wait on.
constexpr std::chrono::milliseconds kPollPeriod{50};

std::vector<int> watched_signals() {
  std::vector<int> signals = stop_signals();
  signals.insert(signals.end(), default_notify_signals().begin(), default_notify_signals().end());
  return signals;
}

bool is_stop_signal(int signal) {
  return std::find(stop_signals().begin(), stop_signals().end(), signal) != stop_signals().end();
}

class Supervisor {
 public:
  Supervisor(std::vector<base::ChildProcess>& workers, const SupervisorOptions& options)
      : workers_(workers), options_(options) {}

  SupervisorOutcome run() {
    while (!all_ended()) {
      wait_for_event();
      while (const std::optional<int> signal = signals_.next()) handle_signal(*signal);
      act_on_deadlines();
    }
    if (outcome_.first_failure) outcome_.status = outcome_.first_failure->state.status();
    if (stop_signal_ != 0) outcome_.status = any_saved() ? kExitPreempted : 128 + stop_signal_;
    if (outcome_.status != 0) keep_status_despite_sigterm();
    return outcome_;
  }

 private:
  bool all_ended() {
    bool all = true;
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (!workers_[i].poll_exit()) {
        all = false;
      } else if (!workers_[i].exit_state().success() && !outcome_.first_failure) {
        note_failure(static_cast<int>(i));
      }
    }
    return all;
  }

  bool any_saved() const {
    return std::any_of(workers_.begin(), workers_.end(), [](const base::ChildProcess& worker) {
      return !worker.exit_state().signaled && worker.exit_state().code == kExitPreempted;
    });
  }

  void note_failure(int worker) {
    outcome_.first_failure = Failure{worker, workers_[worker].pid(), workers_[worker].exit_state()};
    if (!terminate_at_ && !kill_at_) terminate_at_ = Clock::now() + options_.failure_grace;
  }

  void handle_signal(int signal) {
    if (!is_stop_signal(signal)) {
      for (const base::ChildProcess& worker : workers_) worker.notify(signal);
      return;
    }
    for (const base::ChildProcess& worker : workers_) worker.send_signal(signal);
    if (stop_signal_ != 0) return;
    stop_signal_ = signal;
    terminate_at_.reset();
    kill_at_ = Clock::now() + options_.termination_grace;
  }

  void act_on_deadlines() {
    const Clock::time_point now = Clock::now();
    if (terminate_at_ && now >= *terminate_at_) {
      for (const base::ChildProcess& worker : workers_) worker.send_signal(SIGTERM);
      terminate_at_.reset();
      kill_at_ = now + options_.termination_grace;
    }
    if (kill_at_ && now >= *kill_at_) {
      for (const base::ChildProcess& worker : workers_) worker.send_signal(SIGKILL);
      kill_at_.reset();
    }
  }

  // Reaps nobody: an exit noticed here and not by all_ended() would be waited for in vain.
  void wait_for_event() {
    std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
    bool blind = false;
    for (base::ChildProcess& worker : workers_) {
      if (worker.ended()) continue;
      if (worker.exit_fd() >= 0) {
        fds.push_back({worker.exit_fd(), POLLIN, 0});
      } else {
        blind = true;
      }
    }
    ::poll(fds.data(), fds.size(), timeout_ms(blind));
  }

  int timeout_ms(bool blind) const {
    std::optional<Clock::time_point> deadline = terminate_at_ ? terminate_at_ : kill_at_;
    if (blind) {
      const Clock::time_point next_look = Clock::now() + kPollPeriod;
      deadline = deadline ? std::min(*deadline, next_look) : next_look;
    }
    if (!deadline) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
    return static_cast<int>(std::max<int64_t>(0, left.count()));
  }

  std::vector<base::ChildProcess>& workers_;
  const SupervisorOptions options_;
  SignalQueue signals_{watched_signals()};
  SupervisorOutcome outcome_;
  int stop_signal_ = 0;
  std::optional<Clock::time_point> terminate_at_;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace

SupervisorOutcome supervise(std::vector<base::ChildProcess>& workers, const SupervisorOptions& options) {
  return Supervisor(workers, options).run();
}

}  // namespace lockstep::launcher
