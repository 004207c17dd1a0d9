#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::comm::shm {

enum class Reduction : uint8_t { kSum, kMean, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };

enum class ElementType : uint8_t {
  kFloat,
  kDouble,
  kHalf,
  kBFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kBool
};

const char* to_string(Reduction reduction);

// Combines element by element, always in the order of `sources`, so that neither chunking nor the
// rank that does the work changes a bit of the result.
//
// kMean multiplies each element by 1 / num_sources before it adds; floating types only. 16-bit
// floats are combined in float and rounded once. Integers wrap. kMin and kMax propagate NaN. bool:
// sum and maximum are "or", product and minimum are "and". Bit operations: integers and bool only.
//
// Each destination gets the result. A destination may be exactly one of the sources; other overlaps
// are not allowed.
struct ReduceArguments {
  Reduction reduction;
  ElementType type;
  const std::byte* const* sources;
  int num_sources;
  std::byte* const* destinations;
  int num_destinations;
  size_t offset_bytes;  // added to every pointer
  size_t numel;
};

void reduce(const ReduceArguments& arguments);

// Whether reduce() supports the combination.
bool can_reduce(Reduction reduction, ElementType type);

}  // namespace lockstep::comm::shm
