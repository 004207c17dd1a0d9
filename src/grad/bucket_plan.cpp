#include "grad/bucket_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace lockstep::grad {

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

}  // namespace lockstep::grad
