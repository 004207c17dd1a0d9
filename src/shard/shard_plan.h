#pragma once

#include <cstdint>
#include <vector>

#include "grad/bucket_plan.h"

namespace lockstep::shard {

// How ranks divide buckets among them: arithmetic only. Each rank owns one run of every
// bucket, all of one length, in the order of the ranks.

// Buckets whose parts start at a multiple of grad::kSlotAlignmentBytes.
std::vector<grad::BucketLayout> plan_shards(const std::vector<grad::BucketItem>& items, int64_t bucket_bytes,
                                            int ranks);

// Elements of one item that a rank owns. An item without elements has an owner, too: it is
// somebody's to save.
struct OwnedRange {
  size_t slot = 0;     // index into layout.slots
  int64_t first = 0;   // in the item
  int64_t count = 0;   // 0 for an item without elements only
  int64_t offset = 0;  // in the rank's part of the bucket
};

// In the order of their places. `items` are those that the layout was planned for.
std::vector<OwnedRange> owned_ranges(const grad::BucketLayout& layout,
                                     const std::vector<grad::BucketItem>& items, int ranks, int rank);

}  // namespace lockstep::shard
