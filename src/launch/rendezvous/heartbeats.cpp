#include "launch/rendezvous/heartbeats.h"

#include <algorithm>

namespace lockstep::launcher {

Heartbeats::Due Heartbeats::due(Time now) const {
  if (next_ == 0 || now - last_regular_ >= interval_) return Due::kRegular;
  if (unanswered_.empty()) return Due::kNone;
  const bool late = now - unanswered_.front().when >= 2 * round_trip_;
  return late && now - unanswered_.back().when >= look_period() ? Due::kUrgent : Due::kNone;
}

int64_t Heartbeats::send(Time now, Due kind) {
  unanswered_.push_back({next_, now});
  if (kind == Due::kRegular) last_regular_ = now;
  return next_++;
}

std::optional<Heartbeats::Time> Heartbeats::answered(int64_t sequence, Time now) {
  while (!unanswered_.empty() && unanswered_.front().sequence < sequence) unanswered_.pop_front();
  if (unanswered_.empty() || unanswered_.front().sequence != sequence) return std::nullopt;
  const Time sent = unanswered_.front().when;
  unanswered_.pop_front();
  // A quick answer counts at once: what was slow was the exception.
  const Duration round_trip = now - sent;
  round_trip_ = std::max(look_period() / 2, std::min(round_trip, (3 * round_trip_ + round_trip) / 4));
  return sent;
}

}  // namespace lockstep::launcher
