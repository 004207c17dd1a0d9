#include "parallel/bucket_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace lockstep::parallel {

namespace {

struct OpenBucket {
  BucketLayout layout;
  int64_t payload_bytes = 0;
  int64_t limit_bytes = 0;
};

int64_t bytes_of(const BucketItem& item) {
  return item.numel * static_cast<int64_t>(c10::elementSize(item.dtype));
}

void append(OpenBucket& bucket, size_t index, const BucketItem& item) {
  bucket.layout.slots.push_back({index, 0});
  bucket.payload_bytes += bytes_of(item);
}

// Decides the places inside a bucket that gets no more items.
BucketLayout arrange(BucketLayout layout, const std::vector<BucketItem>& items, int64_t numel_multiple) {
  std::stable_partition(layout.slots.begin(), layout.slots.end(), [&](const BucketSlot& slot) {
    return bytes_of(items[slot.item]) % kSlotAlignmentBytes == 0;
  });
  for (BucketSlot& slot : layout.slots) {
    slot.offset = layout.payload;
    layout.payload += items[slot.item].numel;
  }
  layout.numel = (layout.payload + numel_multiple - 1) / numel_multiple * numel_multiple;
  return layout;
}

// The item that backward is expected to reach last.
size_t earliest_item(const BucketLayout& layout) {
  return std::min_element(layout.slots.begin(), layout.slots.end(),
                          [](const BucketSlot& a, const BucketSlot& b) { return a.item < b.item; })
      ->item;
}

}  // namespace

std::vector<BucketLayout> plan_buckets(const std::vector<BucketItem>& items, const BucketLimits& limits) {
  base::check_lt(0, limits.first_bytes, "limit of the first bucket");
  base::check_lt(0, limits.bytes, "limit of a bucket");
  base::check_lt(0, limits.numel_multiple, "divisor of a bucket's length");

  using Kind = std::tuple<c10::ScalarType, c10::DeviceType, c10::DeviceIndex, int>;
  std::map<Kind, OpenBucket> open;
  std::vector<BucketLayout> plan;
  for (size_t i = items.size(); i-- > 0;) {
    const BucketItem& item = items[i];
    const Kind kind{item.dtype, item.device.type(), item.device.index(), item.family};
    auto [it, is_new] = open.try_emplace(kind);
    OpenBucket& bucket = it->second;
    if (is_new) bucket.limit_bytes = limits.first_bytes;
    bucket.layout.dtype = item.dtype;
    bucket.layout.device = item.device;
    bucket.layout.family = item.family;
    append(bucket, i, item);
    if (bucket.payload_bytes >= bucket.limit_bytes) {
      plan.push_back(arrange(std::move(bucket.layout), items, limits.numel_multiple));
      bucket = OpenBucket{.layout = {}, .payload_bytes = 0, .limit_bytes = limits.bytes};
    }
  }
  for (auto& [kind, bucket] : open) {
    if (bucket.layout.slots.empty()) continue;
    plan.push_back(arrange(std::move(bucket.layout), items, limits.numel_multiple));
  }
  // A bucket is full when its earliest registered parameter has its gradient.
  std::sort(plan.begin(), plan.end(),
            [](const BucketLayout& a, const BucketLayout& b) { return earliest_item(a) > earliest_item(b); });
  return plan;
}

std::vector<BucketLayout> plan_shards(const std::vector<BucketItem>& items, int64_t bucket_bytes, int ranks) {
  base::check_lt(0, ranks, "ranks that share a bucket");
  // The smallest elements have one byte: a multiple for them is one for all others.
  const int64_t multiple = kSlotAlignmentBytes * ranks;
  return plan_buckets(items,
                      {.first_bytes = bucket_bytes, .bytes = bucket_bytes, .numel_multiple = multiple});
}

std::vector<OwnedRange> owned_ranges(const BucketLayout& layout, const std::vector<BucketItem>& items,
                                     int ranks, int rank) {
  base::check_eq(layout.numel % ranks, int64_t{0}, "elements that are left over");
  const int64_t shard = layout.numel / ranks;
  const int64_t begin = shard * rank;
  std::vector<OwnedRange> ranges;
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const BucketSlot& slot = layout.slots[i];
    const int64_t numel = items[slot.item].numel;
    const int64_t from = std::max(begin, slot.offset);
    const int64_t to = std::min(begin + shard, slot.offset + numel);
    const bool is_last = rank + 1 == ranks;
    const bool owns_nothing =
        numel == 0 && from == slot.offset && (from < begin + shard || (is_last && from == begin + shard));
    if (from < to || owns_nothing) ranges.push_back({i, from - slot.offset, to - from, from - begin});
  }
  return ranges;
}

}  // namespace lockstep::parallel
