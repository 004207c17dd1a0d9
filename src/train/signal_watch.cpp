#include "train/signal_watch.h"

#include <signal.h>
#include <time.h>

#include <array>
#include <atomic>
#include <map>

#include "base/mutex.h"

namespace lockstep::train {
namespace {

// A process has one handler for each signal, and a handler can only use static variables.
std::array<std::atomic<uint32_t>, NSIG> received_counts{};

// The time of the first Ctrl-C of these watches, in seconds; 0: none.
std::atomic<int64_t> first_interrupt_s{0};

int64_t now_s() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + 1;  // never 0
}

extern "C" void count_signal(int signal) {
  received_counts[static_cast<size_t>(signal)].fetch_add(1, std::memory_order_relaxed);
  if (signal != SIGINT) return;
  // A second Ctrl-C is intended to end the process. Launchers pass the first one on, some of them
  // twice.
  int64_t first = 0;
  if (first_interrupt_s.compare_exchange_strong(first, now_s()) || now_s() - first < 2) return;
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);
}

struct Handler {
  int users = 0;
  struct sigaction previous {};
};

struct Handlers {
  base::Mutex mutex;
  std::map<int, Handler> of_signal LOCKSTEP_GUARDED_BY(mutex);
};

Handlers& installed_handlers() {
  static Handlers handlers;
  return handlers;
}

uint32_t count_of(int signal) {
  return received_counts[static_cast<size_t>(signal)].load(std::memory_order_relaxed);
}

}  // namespace

SignalWatch::SignalWatch(std::vector<int> signals) : signals_(std::move(signals)) {
  Handlers& handlers = installed_handlers();
  const base::MutexLock lock(handlers.mutex);
  for (const int signal : signals_) {
    counts_.push_back(count_of(signal));
    Handler& handler = handlers.of_signal[signal];
    if (handler.users++ > 0) continue;
    if (signal == SIGINT) first_interrupt_s = 0;
    struct sigaction action {};
    action.sa_handler = count_signal;
    // Interrupted system calls of collectives and files restart.
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, &handler.previous);
  }
}

SignalWatch::~SignalWatch() {
  if (kept_) return;
  Handlers& handlers = installed_handlers();
  const base::MutexLock lock(handlers.mutex);
  for (const int signal : signals_) {
    Handler& handler = handlers.of_signal[signal];
    if (--handler.users == 0) ::sigaction(signal, &handler.previous, nullptr);
  }
}

int SignalWatch::received() const {
  for (size_t i = 0; i < signals_.size(); ++i) {
    if (count_of(signals_[i]) != counts_[i]) return signals_[i];
  }
  return 0;
}

}  // namespace lockstep::train
