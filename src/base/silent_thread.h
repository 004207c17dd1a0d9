#pragma once

#include <csignal>
#include <functional>
#include <thread>
#include <utility>

namespace lockstep::base {

// A thread that takes no signals: those of the process are for the threads that expect them.
inline std::thread start_without_signals(std::function<void()> run) {
  sigset_t all, previous;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &previous);
  std::thread thread(std::move(run));
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  return thread;
}

}  // namespace lockstep::base
