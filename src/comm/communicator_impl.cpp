// The group behind a Communicator: how it is made, how it learns which rank broke it, how its
// ranks find out that some of them did not call meet(), and what the layers above use of it.

#include "comm/communicator_impl.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <numeric>
#include <thread>

#include "base/log.h"
#include "comm/plugin.h"

namespace lockstep {
namespace {

// A broken connection is noticed a round trip before rank 0 reports which rank died. The wait is
// shorter if the backend has named a rank.
constexpr std::chrono::milliseconds kDeparturePatience{2000};
constexpr std::chrono::milliseconds kShortDeparturePatience{500};

constexpr std::chrono::milliseconds kMeetingPollInterval{2};

std::string meeting_key(const std::string& meeting, int rank) { return fmt::format("{}/{}", meeting, rank); }

std::vector<int> missing_ranks(c10d::Store& store, const std::string& meeting, int size) {
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    if (!store.check({meeting_key(meeting, rank)})) missing.push_back(rank);
  }
  return missing;
}

// Records the ranks that did not come, an empty list if all did. The first record counts: ranks
// look at different moments and must all reach the same result.
void record_outcome(c10d::Store& store, const std::string& outcome, const std::vector<int>& missing) {
  store.compareSet(outcome, std::string(), Json(missing).dump());
}

std::string meeting_error(const std::string& purpose, const std::vector<int>& missing, int own_rank,
                          std::chrono::milliseconds patience) {
  if (std::find(missing.begin(), missing.end(), own_rank) != missing.end()) {
    return fmt::format(
        "{}: this rank came after the others had given up: every rank has to call it at the "
        "same place of the program",
        purpose);
  }
  return fmt::format(
      "{}: rank{} {} did not come within {} s: every rank has to call it at the same place of the program, "
      "not rank 0 alone",
      purpose, missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
      std::chrono::duration<double>(patience).count());
}

}  // namespace

Communicator::Impl::Impl(comm::TransportRequest request, comm::Transport transport,
                         std::shared_ptr<comm::Lifeline> lifeline)
    : request_(std::move(request)), transport_(std::move(transport)), lifeline_(std::move(lifeline)) {
  if (lifeline_) {
    // Without the abort, a rank that waits for a live rank, which itself waits for the dead one,
    // would wait for its whole timeout.
    subscription_ = lifeline_->on_death([this](int job_rank) {
      if (const std::optional<int> member = comm::rank_in_group(request_.job_ranks, job_rank))
        abort_for(*member);
    });
  }
}

Communicator::Impl::~Impl() {
  if (subscription_) lifeline_->forget(*subscription_);
  try {
    if (transport_.backend) transport_.backend->shutdown();
  } catch (const std::exception& error) {
    base::log_warning("comm", "closing a group of backend {} failed: {}", transport_.name, error.what());
  }
}

at::Device Communicator::Impl::device() const {
  return transport_.devices == comm::Transport::Devices::kCuda
             ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(request_.options.device_index))
             : at::Device(at::kCPU);
}

Communicator Communicator::Impl::make_subgroup(const std::vector<int>& ranks, int index_in_group,
                                               const CommunicatorOptions& options) const {
  comm::TransportRequest request = request_;
  request.options = options;
  request.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  request.size = static_cast<int>(ranks.size());
  if (request.store) {
    request.store =
        c10::make_intrusive<c10d::PrefixStore>(fmt::format("group{}", index_in_group), request.store);
  }
  request.job_ranks.clear();
  for (const int member : ranks) {
    request.job_ranks.push_back(request_.job_ranks[static_cast<size_t>(member)]);
  }
  return comm::make_group(std::move(request), lifeline_);
}

std::shared_ptr<Work::Impl> Communicator::Impl::new_work(std::string_view operation, Timeout timeout) {
  auto work = std::make_shared<Work::Impl>();
  work->group = shared_from_this();
  work->operation = operation;
  work->timeout = comm::bounded(timeout.value_or(request_.options.timeout));
  // A backend whose operations continue after wait() reports their progress itself.
  if (size() > 1) work->reported.start(operation, /*to_launcher=*/!transport_.failure);
  return work;
}

void Communicator::Impl::finish_observed(Work& work, comm::Call call,
                                         std::chrono::steady_clock::time_point began) const {
  work.wait();
  comm::wait_for_device(device());
  call.time = std::chrono::steady_clock::now() - began;
  observer_->called(call);
}

// --- failures ---

void Communicator::Impl::abort_for(int dead_rank) const {
  if (transport_.failure) {
    // Before the abort: after it the device continues, with invalid results.
    transport_.failure->report({fmt::format("rank {} died", dead_rank), false, dead_rank});
  }
  try {
    transport_.backend->abort();
  } catch (const std::exception& error) {
    base::log_warning("comm", "aborting a group of backend {} after rank {} died failed: {}", transport_.name,
                      dead_rank, error.what());
  }
}

bool Communicator::Impl::has_failed() const {
  return transport_.failure->failed() || transport_.backend->getError() != c10d::ErrorType::SUCCESS;
}

void Communicator::Impl::throw_failure(std::string_view operation, Timeout timeout) const {
  const auto unknown_cause = std::make_exception_ptr(CommError(
      "comm",
      fmt::format("{} failed on rank {} of {}, backend {}: an earlier operation failed on the device",
                  operation, rank(), size(), transport_.name),
      CommError::Recovery::kRebuild));
  std::rethrow_exception(explain(unknown_cause, operation, timeout));
}

std::exception_ptr Communicator::Impl::explain(std::exception_ptr failure, std::string_view operation,
                                               Timeout timeout) const {
  const auto report = transport_.failure ? transport_.failure->get() : std::nullopt;
  if (report && report->timed_out) {
    failure = std::make_exception_ptr(
        comm::TimeoutError("comm", report->text, CommError::Recovery::kRebuild, report->rank));
  } else if (report) {
    failure =
        std::make_exception_ptr(CommError("comm", report->text, CommError::Recovery::kRebuild, report->rank));
  } else {
    failure = comm::translate_failure(std::move(failure), {operation, transport_.name, rank(), size(),
                                                           timeout.value_or(request_.options.timeout)});
  }
  if (lifeline_ == nullptr) return failure;
  try {
    std::rethrow_exception(failure);
  } catch (const comm::TimeoutError&) {
    return failure;  // no rank died: all connections are open
  } catch (const CommError& error) {
    return name_departed_rank(error, operation);
  } catch (...) {
    return failure;
  }
}

std::exception_ptr Communicator::Impl::name_departed_rank(const CommError& error,
                                                          std::string_view operation) const {
  const bool named = error.failed_rank().has_value();
  const auto departure = lifeline_->first_departure(named ? kShortDeparturePatience : kDeparturePatience);
  if (!departure || (named && !departure->died)) return std::current_exception();
  const std::optional<int> failed_rank = comm::rank_in_group(request_.job_ranks, departure->rank);
  const std::string place = failed_rank && *failed_rank != departure->rank
                                ? fmt::format(", rank {} of this group,", *failed_rank)
                                : "";
  return std::make_exception_ptr(CommError(
      "comm",
      fmt::format("rank {}{} {} during {} on rank {} of {}, backend {}", departure->rank, place,
                  departure->died ? "died" : "left the job", operation, rank(), size(), transport_.name),
      CommError::Recovery::kRebuild, failed_rank));
}

// --- meet() ---
//
// Ranks meet through the store, not through the backend: a rank that does not come is in another
// collective, and what a backend does with two different collectives is undefined.

void Communicator::Impl::wait_for_all(const std::string& purpose, const std::string& meeting,
                                      Milliseconds patience) const {
  c10d::Store& store = *request_.store;
  const std::string outcome = meeting + "/outcome";
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!store.check({outcome})) {
    if (std::chrono::steady_clock::now() > deadline) {
      record_outcome(store, outcome, missing_ranks(store, meeting, size()));
      break;
    }
    if (lifeline_ && lifeline_->first_departure(Milliseconds(0))) {
      throw CommError("comm", "a rank left before all were there", CommError::Recovery::kRebuild);
    }
    std::this_thread::sleep_for(kMeetingPollInterval);
  }
  const std::vector<uint8_t> bytes = store.get(outcome);
  const auto missing = Json::parse(std::string(bytes.begin(), bytes.end())).get<std::vector<int>>();
  if (!missing.empty()) throw ConfigError("comm", meeting_error(purpose, missing, rank(), patience));
}

void Communicator::Impl::meet(const std::string& purpose, Milliseconds patience) {
  if (size() == 1) return;
  c10d::Store& store = *request_.store;
  const int index = num_meetings_[purpose]++;
  const auto name = [&](int index_of) { return fmt::format("meeting/{}/{}", purpose, index_of); };
  const std::string meeting = name(index);
  try {
    // A rank that is here has left the meeting before the last, and so have all others.
    if (index >= 2) store.deleteKey(meeting_key(name(index - 2), rank()));
    store.set(meeting_key(meeting, rank()), "");
    if (store.add(meeting + "/count", 1) == size()) record_outcome(store, meeting + "/outcome", {});
    wait_for_all(purpose, meeting, patience);
  } catch (const ConfigError&) {
    throw;
  } catch (...) {
    std::rethrow_exception(explain(std::current_exception(), "meet", patience));
  }
}

// --- for the layers above ---

namespace comm {

Communicator make_group(TransportRequest request, std::shared_ptr<Lifeline> lifeline) {
  request.options.timeout = bounded(request.options.timeout);
  request.options.connect_timeout = bounded(request.options.connect_timeout);
  const OperationContext where{"connect", request.options.backend, request.rank, request.size,
                               request.options.connect_timeout};
  request.lifeline = lifeline;
  try {
    Transport transport = make_transport(request);
    return Communicator(
        std::make_shared<Communicator::Impl>(std::move(request), std::move(transport), std::move(lifeline)));
  } catch (...) {
    std::rethrow_exception(translate_failure(std::current_exception(), where));
  }
}

c10::Device device_of(const Communicator& group) { return group.impl()->device(); }

void wait_for_device(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

Communicator make_host_group(const Communicator& group) {
  CommunicatorOptions options = group.impl()->options();
  if (group.impl()->transport().devices == Transport::Devices::kCuda) {
    options.backend = "auto";
    options.device_index = -1;
  }
  std::vector<int> ranks(static_cast<size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  Communicator host_group = group.impl()->make_subgroup(ranks, group.impl()->next_subgroup(), options);
  host_group.impl()->follow(group.impl());
  return host_group;
}

void throw_if_failed(const Communicator& group, std::string_view operation) {
  group.impl()->throw_if_failed(operation, {});
}

void watch_graph(const Communicator& group, const char* operation) {
  const Transport& transport = group.impl()->transport();
  if (group.size() > 1 && transport.failure) watch_cuda_stream(*transport.backend, operation);
}

void observe(const Communicator& group, std::shared_ptr<CallObserver> observer) {
  group.impl()->observe(std::move(observer));
}

void stop_observing(const Communicator& group, const CallObserver& observer) {
  group.impl()->stop_observing(observer);
}

double bus_factor(std::string_view operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation == "all_reduce") return 2 * others;
  if (operation == "broadcast" || operation == "barrier") return 1;
  return others;
}

}  // namespace comm
}  // namespace lockstep
