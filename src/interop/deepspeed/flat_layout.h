#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interop/deepspeed/model_states.h"

namespace lockstep::interop {

// Elements [first, first + count) of a rank's flat group.
struct FlatSegment {
  size_t rank = 0;
  size_t flat = 0;
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const FlatSegment&) const = default;
};

// A parameter and where its elements are, in their order.
struct FlatParameter {
  std::string name;
  std::vector<int64_t> shape;
  size_t flat = 0;  // the one that it begins in
  std::vector<FlatSegment> segments;
};

// Lengths of all flat groups: lengths[rank][flat].
using FlatLengths = std::vector<std::vector<int64_t>>;

// Stages 1 and 2: a flat group is its parameters one after the other, cut into one part a
// rank; the end may be padded. PickleError: parameters and lengths do not fit.
std::vector<FlatParameter> layout_of_groups(const std::vector<std::vector<ShapedName>>& groups,
                                            const FlatLengths& lengths);

// Stage 3: every parameter is cut into one part a rank, the last ones padded; a rank's flat
// groups are its parts one after the other.
std::vector<FlatParameter> layout_of_parts(const std::vector<std::vector<ShapedName>>& groups,
                                           const FlatLengths& lengths);

}  // namespace lockstep::interop
