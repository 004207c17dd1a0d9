#pragma once

#include <lockstep/communicator.h>

#include <string>
#include <vector>

namespace lockstep::grad {

// One thing that all ranks must have alike.
struct ModelFact {
  std::string subject;  // "parameter fc.weight", "option find_unused_parameters"
  std::string value;    // "float32 [10, 5]"

  bool operator==(const ModelFact&) const = default;
};

// Compares the facts, order included, over all ranks; every rank calls it. Equal
// models cost one exchange of a hash. ConfigError, on all ranks: what differs, on
// which rank, and how.
void require_agreement(const std::vector<ModelFact>& facts, const Communicator& communicator);

// The sentence for one rank's facts against rank 0's; empty when equal. Pure.
std::string describe_difference(const std::vector<ModelFact>& rank0, const std::vector<ModelFact>& other,
                                int other_rank);

}  // namespace lockstep::grad
