#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

namespace lockstep::launcher {

// Which heartbeats a member sends when, and what their answers tell it. Told the time;
// no clock, no socket.
//
// One an interval. While the oldest is not answered in twice the time that answers took
// so far, urgent ones follow soon.
class Heartbeats {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  explicit Heartbeats(Duration interval) : interval_(interval), round_trip_(interval / kLooks) {}

  // How often due() is to be asked.
  Duration look_period() const { return interval_ / kLooks; }
  enum class Due { kNone, kRegular, kUrgent };
  Due due(Time now) const;
  // The number of the one that is sent now.
  int64_t send(Time now, Due kind);
  // When that one was sent. nullopt: none such waits for an answer.
  std::optional<Time> answered(int64_t sequence, Time now);

 private:
  static constexpr int kLooks = 5;

  struct Sent {
    int64_t sequence;
    Time when;
  };

  const Duration interval_;
  std::deque<Sent> unanswered_;
  Time last_regular_;
  Duration round_trip_;  // as of late
  int64_t next_ = 0;
};

}  // namespace lockstep::launcher
