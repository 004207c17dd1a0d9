#pragma once

#include <lockstep/communicator.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace lockstep::test {

// A group to run a test in: one thread for each entry of `hosts`. Ranks with equal
// entries believe that they share a machine.
struct GroupCase {
  std::string backend;
  std::vector<int> hosts;

  int size() const { return static_cast<int>(hosts.size()); }
  // A name that GoogleTest takes for a parameter: gloo_0_0_1.
  std::string name() const;
};

void PrintTo(const GroupCase& group, std::ostream* stream);

// All ranks on one host, over shared memory.
GroupCase on_one_host(int ranks);

// A group, and the stage at which it divides a training.
struct StageCase {
  GroupCase group;
  int stage;

  std::string name() const;  // gloo_0_0_1_stage3
};

void PrintTo(const StageCase& value, std::ostream* stream);

// Runs `body` as every rank of a new group, each in a thread of its own, and joins
// them. The first exception of a body is rethrown.
void run_group(const GroupCase& group, const std::function<void(Communicator&)>& body);
void run_group(const GroupCase& group, const CommunicatorOptions& options,
               const std::function<void(Communicator&)>& body);

}  // namespace lockstep::test
