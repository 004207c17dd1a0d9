#include "support/group_case.h"

#include <fmt/ranges.h>
#include <lockstep/c10d.h>

#include "support/rank_threads.h"

namespace lockstep::test {

std::string GroupCase::name() const { return fmt::format("{}_{}", backend, fmt::join(hosts, "_")); }

void PrintTo(const GroupCase& group, std::ostream* stream) { *stream << group.name(); }

void run_group(const GroupCase& group, const std::function<void(Communicator&)>& body) {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(30);
  options.connect_timeout = std::chrono::seconds(30);
  run_group(group, options, body);
}

void run_group(const GroupCase& group, const CommunicatorOptions& options,
               const std::function<void(Communicator&)>& body) {
  run_ranks(group.size(), [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    CommunicatorOptions mine = options;
    mine.backend = group.backend;
    Communicator communicator = make_communicator(store, rank, group.size(), mine);
    body(communicator);
  });
}

}  // namespace lockstep::test
