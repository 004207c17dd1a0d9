#pragma once

#include <string>

namespace lockstep::checkpoint {

// Which metric ranks checkpoints. Values of different kinds cannot be compared. Empty: not known, as in
// checkpoints of earlier versions.
struct MetricKind {
  std::string name;  // "val_loss"
  std::string mode;  // "min" or "max": which value is the best

  bool known() const { return !name.empty(); }
  bool operator==(const MetricKind&) const = default;
};

}  // namespace lockstep::checkpoint
