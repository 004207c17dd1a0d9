#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/deepspeed/states.h"

namespace lockstep::checkpoint {

// Elements [first, first + count) of a rank's flat group.
struct FlatSegment {
  size_t rank = 0;
  size_t flat = 0;
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const FlatSegment&) const = default;
};

// A parameter, and the places of its elements in their order.
struct FlatParameter {
  std::string name;
  std::vector<int64_t> shape;
  size_t flat = 0;  // the flat group that it begins in
  std::vector<FlatSegment> segments;
};

// Lengths of all flat groups: lengths[rank][flat].
using FlatLengths = std::vector<std::vector<int64_t>>;

// Stages 1 and 2: the parameters of a flat group follow each other; the group is split into one shard a
// rank, with padding at the end. PickleError: parameters and lengths do not fit.
std::vector<FlatParameter> layout_of_stage_1_and_2(const std::vector<std::vector<ShapedName>>& groups,
                                                   const FlatLengths& lengths);

// Stage 3: every parameter is split into one shard a rank, the last ones padded; the shards of a rank
// follow each other in its flat groups. PickleError: parameters and lengths do not fit.
std::vector<FlatParameter> layout_of_stage_3(const std::vector<std::vector<ShapedName>>& groups,
                                             const FlatLengths& lengths);

// At stage 0 DeepSpeed numbers the parameters of the optimizer and does not name them. They are in
// groups, each in the order of the model; the model may have more parameters than the optimizer.

// The shape of each numbered parameter; nullopt: not known, it has no state yet.
using NumberedShapes = std::vector<std::optional<std::vector<int64_t>>>;

// The name of each numbered parameter, found by shape and order. nullopt: there is no such assignment,
// or more than one.
std::optional<std::vector<std::string>> name_numbered(const std::vector<ShapedName>& parameters,
                                                      const std::vector<std::vector<size_t>>& groups,
                                                      const NumberedShapes& shapes);

}  // namespace lockstep::checkpoint
