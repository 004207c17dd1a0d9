#include "support/group_case.h"

#include <fmt/ranges.h>

#include <numeric>

#include "comm/communicator_impl.h"
#include "support/rank_threads.h"

namespace lockstep::test {

std::string GroupCase::name() const { return fmt::format("{}_{}", backend, fmt::join(hosts, "_")); }

void PrintTo(const GroupCase& group, std::ostream* stream) { *stream << group.name(); }

GroupCase on_one_host(int ranks) { return {"shm", std::vector<int>(static_cast<size_t>(ranks), 0)}; }

std::string StageCase::name() const { return fmt::format("{}_stage{}", group.name(), stage); }

void PrintTo(const StageCase& value, std::ostream* stream) { *stream << value.name(); }

void run_group(const GroupCase& group, const std::function<void(Communicator&)>& body) {
  CommunicatorOptions options;
  // Long enough for a machine that does other work beside: only a failing test waits for it.
  options.timeout = std::chrono::seconds(120);
  options.connect_timeout = std::chrono::seconds(120);
  run_group(group, options, body);
}

void run_group(const GroupCase& group, const CommunicatorOptions& options,
               const std::function<void(Communicator&)>& body) {
  run_ranks(group.size(), [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    comm::TransportRequest request;
    request.store = store;
    request.rank = rank;
    request.size = group.size();
    request.options = options;
    request.options.backend = group.backend;
    request.host_identity = fmt::format("host{}", group.hosts[static_cast<size_t>(rank)]);
    request.job_ranks.resize(group.hosts.size());
    std::iota(request.job_ranks.begin(), request.job_ranks.end(), 0);
    Communicator communicator = comm::make_group(request, nullptr);
    body(communicator);
  });
}

}  // namespace lockstep::test
