#include "comm/agree.h"

#include <ATen/ATen.h>
#include <lockstep/communicator.h>

#include <algorithm>
#include <exception>

#include "comm/communicator_internal.h"

namespace lockstep::comm {
namespace {

// First byte of an outcome on the wire.
constexpr char kDone = '+';
constexpr char kFailed = '-';

std::string outcome_bytes(const RankOutcome& outcome) {
  return (outcome.failed ? kFailed : kDone) + outcome.text;
}

RankOutcome outcome_from(const std::string& bytes) { return {bytes.at(0) == kFailed, bytes.substr(1)}; }

// Exceptions of other types pass.
template <typename Caught>
RankOutcome run_work(const std::function<std::string()>& work) {
  try {
    return {false, work()};
  } catch (const Caught& error) {
    return {true, error.what()};
  }
}

std::vector<RankOutcome> exchange_outcomes(const Communicator& group, const RankOutcome& own) {
  std::vector<RankOutcome> outcomes;
  for (const std::string& bytes : group.all_gather_bytes(outcome_bytes(own)))
    outcomes.push_back(outcome_from(bytes));
  return outcomes;
}

// `text` is "[component] sentence", or that of an exception of another library.
template <typename Kind>
[[noreturn]] void throw_as(const std::string& text) {
  const size_t end = text.find("] ");
  if (!text.starts_with('[') || end == std::string::npos) throw Kind("train", text);
  throw Kind(text.substr(1, end - 1), text.substr(end + 2));
}

[[noreturn]] void throw_agreed(const std::string& text, bool reported_here) {
  if (reported_here) throw_as<AgreedError>(text);
  throw_as<ReportedElsewhere>(text);
}

}  // namespace

RankOutcome outcome_of_main_rank(const Communicator& group, const std::function<std::string()>& work) {
  return outcome_from(
      group.broadcast_bytes(group.rank() == 0 ? outcome_bytes(run_work<std::exception>(work)) : ""));
}

std::vector<RankOutcome> outcomes_of_all_ranks(const Communicator& group,
                                               const std::function<std::string()>& work) {
  return exchange_outcomes(group, run_work<std::exception>(work));
}

void throw_once(const Communicator& group, const ConfigError& error, std::chrono::milliseconds patience) {
  const std::string own = error.what();
  // The fake backend has no peers to ask.
  if (group.backend() == "fake") throw_as<ConfigError>(own);
  std::vector<std::string> all;
  try {
    // Through the store first: a rank that did not fail is in another collective.
    group.meet("the end by an error", patience);
    all = group.all_gather_bytes(own, patience);
  } catch (const Error&) {
    throw_as<ConfigError>(own);
  }
  throw_agreed(own, std::find(all.begin(), all.end(), own) - all.begin() == group.rank());
}

bool any_rank(const Communicator& group, bool flag) {
  const at::Tensor answer =
      at::full({1}, flag ? 1 : 0, at::TensorOptions(at::kLong).device(device_of(group)));
  group.all_reduce(answer, ReduceOp::kMax).wait();
  return answer.item<int64_t>() != 0;
}

int64_t value_of_main_rank(const Communicator& group, int64_t value) {
  if (group.size() == 1) return value;
  return std::stoll(group.broadcast_bytes(std::to_string(value)));
}

}  // namespace lockstep::comm

namespace lockstep {

std::string on_main_rank(const Communicator& group, const std::function<std::string()>& work) {
  comm::RankOutcome outcome = comm::outcome_of_main_rank(group, work);
  if (outcome.failed) comm::throw_agreed(outcome.text, group.rank() == 0);
  return std::move(outcome.text);
}

void on_every_rank(const Communicator& group, const std::function<void()>& work) {
  const comm::RankOutcome own = comm::run_work<ConfigError>([&] { return work(), std::string(); });
  int rank = 0;
  for (const comm::RankOutcome& outcome : comm::exchange_outcomes(group, own)) {
    if (outcome.failed) comm::throw_agreed(outcome.text, group.rank() == rank);
    ++rank;
  }
}

}  // namespace lockstep
