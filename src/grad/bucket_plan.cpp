#include "grad/bucket_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace lockstep::grad {

namespace {

struct OpenBucket {
  BucketLayout layout;
  int64_t payload_bytes = 0;
  int64_t limit_bytes = 0;
};

int64_t align_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

void append(OpenBucket& bucket, size_t index, const BucketItem& item) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(item.dtype));
  // A complex double has 16 bytes; no dtype exceeds or fails to divide the alignment.
  const int64_t offset = align_up(bucket.layout.numel, kSlotAlignmentBytes / element_bytes);
  bucket.layout.slots.push_back({index, offset});
  bucket.layout.numel = offset + item.numel;
  bucket.payload_bytes += item.numel * element_bytes;
}

}  // namespace

std::vector<BucketLayout> plan_buckets(const std::vector<BucketItem>& items, const BucketLimits& limits) {
  base::check_lt(0, limits.first_bytes, "limit of the first bucket");
  base::check_lt(0, limits.bytes, "limit of a bucket");

  using Kind = std::pair<c10::ScalarType, std::pair<c10::DeviceType, c10::DeviceIndex>>;
  std::map<Kind, OpenBucket> open;
  std::vector<BucketLayout> plan;
  for (size_t i = items.size(); i-- > 0;) {
    const BucketItem& item = items[i];
    const Kind kind{item.dtype, {item.device.type(), item.device.index()}};
    auto [it, is_new] = open.try_emplace(kind);
    OpenBucket& bucket = it->second;
    if (is_new) bucket.limit_bytes = limits.first_bytes;
    bucket.layout.dtype = item.dtype;
    bucket.layout.device = item.device;
    append(bucket, i, item);
    if (bucket.payload_bytes >= bucket.limit_bytes) {
      plan.push_back(std::move(bucket.layout));
      bucket = OpenBucket{.layout = {}, .payload_bytes = 0, .limit_bytes = limits.bytes};
    }
  }
  for (auto& [kind, bucket] : open) {
    if (!bucket.layout.slots.empty()) plan.push_back(std::move(bucket.layout));
  }
  // A bucket is full when its earliest registered parameter has its gradient.
  std::sort(plan.begin(), plan.end(), [](const BucketLayout& a, const BucketLayout& b) {
    return a.slots.back().item > b.slots.back().item;
  });
  return plan;
}

}  // namespace lockstep::grad
