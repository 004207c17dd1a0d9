#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::parallel {

// How parameters share flat buckets, and how ranks shard the buckets. Arithmetic only: no tensor, no
// communication. Equal input gives equal plans, so ranks need not exchange them.

struct BucketItem {
  int64_t numel = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  int family = 0;  // items of two families never share a bucket
};

struct BucketLimits {
  int64_t first_bytes = 0;  // of the first bucket of each dtype and device
  int64_t bytes = 0;        // of every later one
  // Buckets are padded to a multiple of this many elements, so that all shards have one length.
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

// Items whose size is a multiple of this come first in their bucket. They then start at such a
// multiple without padding: a cache line, and enough for any vector load. Items of odd sizes, mostly
// small ones such as the bias of a last layer, come after them.
inline constexpr int64_t kSlotAlignmentBytes = 64;

// Packs items, given in registration order, from the last to the first: backward produces gradients
// roughly in that order. A bucket holds one dtype, device and family, and closes when the bytes of
// its items reach the limit. It may exceed the limit but never splits an item (the rule of c10d).
// Buckets are in the order in which they are expected to fill.
// REQUIRES: all limits are positive.
std::vector<BucketLayout> plan_buckets(const std::vector<BucketItem>& items, const BucketLimits& limits);

// Buckets for sharding: each rank owns one run of elements of every bucket, its shard. Shards have one
// length, are in the order of the ranks, and start at a multiple of kSlotAlignmentBytes.
std::vector<BucketLayout> plan_shards(const std::vector<BucketItem>& items, int64_t bucket_bytes, int ranks);

// The elements of one item that a rank owns. An item without elements has an owner too, which
// saves it.
struct OwnedRange {
  size_t slot = 0;     // index into layout.slots
  int64_t first = 0;   // in the item
  int64_t count = 0;   // 0 for an item without elements only
  int64_t offset = 0;  // in the rank's shard of the bucket
};

// In the order of their offsets. `items` are those that the layout was planned for.
std::vector<OwnedRange> owned_ranges(const BucketLayout& layout, const std::vector<BucketItem>& items,
                                     int ranks, int rank);

}  // namespace lockstep::parallel
