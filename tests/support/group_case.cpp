#include "support/group_case.h"

#include <fmt/ranges.h>
#include <lockstep/c10d.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>

namespace lockstep::test {

std::string GroupCase::name() const {
  std::string text = fmt::format("{}_{}", backend, fmt::join(hosts, "_"));
  return text;
}

void PrintTo(const GroupCase& group, std::ostream* stream) { *stream << group.name(); }

void run_group(const GroupCase& group, const std::function<void(Communicator&)>& body) {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(30);
  options.connect_timeout = std::chrono::seconds(30);
  run_group(group, options, body);
}

void run_group(const GroupCase& group, const CommunicatorOptions& options,
               const std::function<void(Communicator&)>& body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(group.hosts.size());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < group.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        CommunicatorOptions mine = options;
        mine.backend = group.backend;
        Communicator communicator = make_communicator(store, rank, group.size(), mine);
        body(communicator);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  for (const auto& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
}

}  // namespace lockstep::test
