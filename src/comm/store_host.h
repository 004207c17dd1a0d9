#pragma once

#include <lockstep/rank_map.h>

#include <chrono>

namespace lockstep::comm {

// ConfigError: the host at which the ranks are to meet is not known here. Asks again for some
// seconds, at most for the timeout.
void check_store_host(const RankMap& map, std::chrono::milliseconds timeout);

// While one of these lives, c10d prints no warnings and errors, of which it has one for each
// attempt to connect; what they say comes with the exception. TORCH_CPP_LOG_LEVEL and
// TORCH_DISTRIBUTED_DEBUG, where they are set, decide instead.
class QuietC10d {
 public:
  QuietC10d();
  QuietC10d(const QuietC10d&) = delete;
  QuietC10d& operator=(const QuietC10d&) = delete;
  ~QuietC10d();
};

}  // namespace lockstep::comm
