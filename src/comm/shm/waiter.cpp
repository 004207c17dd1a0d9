#include "comm/shm/waiter.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace lockstep::comm::shm {
namespace {

using std::chrono::microseconds;

constexpr int kSpins = 100;  // some microseconds of pause instructions
constexpr int kSpinsPerYield = 20;
constexpr auto kYieldTime = microseconds(1000);
constexpr auto kShortestSleep = microseconds(50);
constexpr auto kLongestSleep = microseconds(1000);

void relax_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

bool Waiter::pause() {
  if (may_spin_ && spins_ < kSpins) {
    ++spins_;
    relax_cpu();
    return false;
  }
  const auto now = Clock::now();
  if (began_ == Clock::time_point{}) {
    began_ = now;
  }
  waited_ = now - began_;
  if (waited_ < kYieldTime) {
    // Pauses between the yields: on two threads of one core a loop of system calls
    // would slow down the very peer that we wait for.
    if (may_spin_) {
      for (int i = 0; i < kSpinsPerYield; ++i) relax_cpu();
    }
    sched_yield();
    return false;
  }
  std::this_thread::sleep_for(std::clamp<Clock::duration>(waited_ / 16, kShortestSleep, kLongestSleep));
  return true;
}

void Waiter::reset() {
  spins_ = 0;
  began_ = {};
  waited_ = {};
}

bool cpus_suffice_for(int count) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) >= count;
}

}  // namespace lockstep::comm::shm
