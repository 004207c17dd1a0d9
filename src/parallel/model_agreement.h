#pragma once

#include <lockstep/communicator.h>

#include <string>
#include <vector>

namespace lockstep::parallel {

// A property that must be equal on all ranks.
struct ModelFact {
  std::string subject;  // "parameter fc.weight", "option find_unused_parameters"
  std::string value;    // "float32 [10, 5]"

  bool operator==(const ModelFact&) const = default;
};

// Compares the facts and their order over all ranks. Collective. Equal facts need one exchange of a
// hash. ConfigError on all ranks: what differs, on which rank, and how.
void require_agreement(const std::vector<ModelFact>& facts, const Communicator& communicator);

// How one rank's facts differ from rank 0's, as a sentence; empty: they are equal.
std::string describe_difference(const std::vector<ModelFact>& rank0, const std::vector<ModelFact>& other,
                                int other_rank);

}  // namespace lockstep::parallel
