#pragma once

#include <chrono>
#include <thread>

namespace lockstep::comm {

// How a polling loop waits: it gives the processor away at once and, when nothing
// moves for a while, for longer, because network threads need it more.
class Backoff {
 public:
  void moved() { idle_ = 0; }

  void pause() {
    if (++idle_ > kYields) {
      std::this_thread::sleep_for(kPause);
    } else {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr int kYields = 500;
  static constexpr std::chrono::microseconds kPause{50};

  int idle_ = 0;
};

}  // namespace lockstep::comm
