#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::grad {

// How parameters share flat buckets: arithmetic only, no tensor, no communication.
// Equal input gives equal plans, so ranks need not exchange them.

struct BucketItem {
  int64_t numel = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  int family = 0;  // items of two families never share a bucket
};

struct BucketLimits {
  int64_t first_bytes = 0;  // of the first bucket of each dtype and device
  int64_t bytes = 0;        // of every later one
  // Buckets are padded to a multiple of this many elements, so that ranks can share them evenly.
  int64_t numel_multiple = 1;
};

struct BucketSlot {
  size_t item = 0;     // index into the items of plan_buckets
  int64_t offset = 0;  // first element inside the bucket's flat buffer
};

struct BucketLayout {
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  int family = 0;
  int64_t payload = 0;            // elements of its items, one after the other without padding
  int64_t numel = 0;              // of the flat buffer: the payload, and padding at its end
  std::vector<BucketSlot> slots;  // one after the other
};

// Items of a multiple of this many bytes come first in their bucket, so that they
// start at such a multiple, a cache line and enough for any vector load, without
// padding; items of odd sizes (mostly small: biases of a last layer) come after them.
inline constexpr int64_t kSlotAlignmentBytes = 64;

// Packs items, given in registration order, from the last to the first, because
// backward produces gradients roughly in that order. A bucket holds one dtype,
// device and family and closes when the bytes of its items reach the limit, so it may exceed
// the limit but never splits an item (the rule of c10d). Buckets come in the order
// in which they are expected to be full.
// REQUIRES: all limits are positive.
std::vector<BucketLayout> plan_buckets(const std::vector<BucketItem>& items, const BucketLimits& limits);

}  // namespace lockstep::grad
