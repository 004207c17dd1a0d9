#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>

namespace lockstep::launcher {

// How far the clock of another machine is ahead of ours, from questions that it
// answered with its time. The truth is within half a round trip of an estimate, so the
// quickest of the last answers counts.
class ClockOffset {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // An answer that has come now. Both times are microseconds since the epoch: ours now,
  // and the peer's when it answered.
  void add(Duration round_trip, int64_t ours_us, int64_t peer_us) {
    const int64_t half_us = std::chrono::duration_cast<std::chrono::microseconds>(round_trip / 2).count();
    recent_.push_back({round_trip, peer_us - (ours_us - half_us)});
    if (recent_.size() > kRecent) recent_.pop_front();
  }

  // What to add to a time of ours to get the peer's; 0 before the first answer.
  int64_t us() const {
    const auto quickest =
        std::min_element(recent_.begin(), recent_.end(),
                         [](const Sample& a, const Sample& b) { return a.round_trip < b.round_trip; });
    return quickest == recent_.end() ? 0 : quickest->offset_us;
  }

 private:
  static constexpr size_t kRecent = 32;
  struct Sample {
    Duration round_trip;
    int64_t offset_us;
  };
  std::deque<Sample> recent_;
};

}  // namespace lockstep::launcher
