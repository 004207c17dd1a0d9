#pragma once

#include <lockstep/error.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lockstep {
class Communicator;
}

// How ranks reach one result when some of them may fail: no rank waits in a collective for one
// that has thrown. Every function here is collective over the group and blocks. on_main_rank() and
// on_every_rank() of lockstep/communicator.h throw an AgreedError on the rank that reports the
// failure, and ReportedElsewhere on the others.
namespace lockstep::comm {

// An error on which the whole group has agreed: every rank throws one.
class AgreedError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// An AgreedError that another rank reports: this rank ends with the same exit status and prints
// nothing.
class ReportedElsewhere : public AgreedError {
 public:
  using AgreedError::AgreedError;
};

// What the work of one rank returned, or the text of what it threw.
struct RankOutcome {
  bool failed = false;
  std::string text;
};

// Runs `work` on rank 0 and gives its outcome to all ranks, for callers with an error type of
// their own.
RankOutcome outcome_of_main_rank(const Communicator& group, const std::function<std::string()>& work);
// Runs `work` on every rank and gives all outcomes to all ranks, in rank order.
std::vector<RankOutcome> outcomes_of_all_ranks(const Communicator& group,
                                               const std::function<std::string()>& work);

// Throws the error with which this rank ends. If all ranks end so within `patience`, the first
// rank that has a text throws it as an AgreedError, and the others with this text throw
// ReportedElsewhere; otherwise the rank throws it as a ConfigError.
[[noreturn]] void throw_once(const Communicator& group, const ConfigError& error,
                             std::chrono::milliseconds patience = std::chrono::seconds(5));

// Whether the flag is true on any rank; all ranks get the same answer.
bool any_rank(const Communicator& group, bool flag);
// Rank 0's value, on all ranks: for decisions by its clock.
int64_t value_of_main_rank(const Communicator& group, int64_t value);

}  // namespace lockstep::comm
