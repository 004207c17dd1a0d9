#include "shard/shard_plan.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::shard {

std::vector<grad::BucketLayout> plan_shards(const std::vector<grad::BucketItem>& items, int64_t bucket_bytes,
                                            int ranks) {
  base::check_lt(0, ranks, "ranks that share a bucket");
  // The smallest elements are of one byte, which suits all others.
  const int64_t multiple = grad::kSlotAlignmentBytes * ranks;
  return grad::plan_buckets(items,
                            {.first_bytes = bucket_bytes, .bytes = bucket_bytes, .numel_multiple = multiple});
}

std::vector<OwnedRange> owned_ranges(const grad::BucketLayout& layout,
                                     const std::vector<grad::BucketItem>& items, int ranks, int rank) {
  base::check_eq(layout.numel % ranks, int64_t{0}, "elements that are left over");
  const int64_t part = layout.numel / ranks;
  const int64_t begin = part * rank;
  std::vector<OwnedRange> ranges;
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const grad::BucketSlot& slot = layout.slots[i];
    const int64_t numel = items[slot.item].numel;
    const int64_t from = std::max(begin, slot.offset);
    const int64_t to = std::min(begin + part, slot.offset + numel);
    const bool is_last = rank + 1 == ranks;
    const bool owns_nothing =
        numel == 0 && from == slot.offset && (from < begin + part || (is_last && from == begin + part));
    if (from < to || owns_nothing) ranges.push_back({i, from - slot.offset, to - from, from - begin});
  }
  return ranges;
}

}  // namespace lockstep::shard
