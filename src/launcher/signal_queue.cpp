#include "launcher/signal_queue.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace lockstep::launcher {
namespace {

// Needed because a blocked signal is queued even if it is ignored.
bool is_ignored(int signal) {
  struct sigaction current {};
  return ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
}

}  // namespace

SignalQueue::SignalQueue(const std::vector<int>& signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : signals) {
    if (!is_ignored(signal)) ::sigaddset(&set, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &set, &previous_);
  fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalQueue::~SignalQueue() { ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }

std::optional<int> SignalQueue::next() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

const std::vector<int>& stop_signals() {
  static const std::vector<int> signals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  return signals;
}

const std::vector<int>& default_notify_signals() {
  static const std::vector<int> signals{SIGUSR1, SIGUSR2};
  return signals;
}

void keep_status_despite_sigterm() { ::signal(SIGTERM, SIG_IGN); }

}  // namespace lockstep::launcher
