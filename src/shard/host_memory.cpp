#include "shard/host_memory.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <bit>

namespace lockstep::shard {

namespace {

constexpr int64_t kAlignment = 64;
constexpr uint64_t kMaxSlabBytes = uint64_t{1} << 30;

}  // namespace

at::Tensor HostMemory::allocate_bytes(int64_t bytes) const {
  const auto options = at::TensorOptions(at::kByte).device(at::kCPU);
  if (!pinned_) return at::empty({bytes}, options);
  try {
    return at::empty({bytes}, options.pinned_memory(true));
  } catch (const c10::Error& error) {
    throw ConfigError("shard", fmt::format("the system gives no {} bytes of page-locked memory for offload; "
                                           "set pin_memory to false, or allow more (ulimit -l): {}",
                                           bytes, error.what_without_backtrace()));
  }
}

at::Tensor HostMemory::allocate(int64_t numel, c10::ScalarType dtype) {
  const auto payload = numel * static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t bytes = (payload + kAlignment - 1) / kAlignment * kAlignment;
  if (!pinned_) {
    slab_ = allocate_bytes(bytes);
    used_bytes_ = 0;
  } else if (!slab_.defined() || used_bytes_ + bytes > slab_.numel()) {
    const uint64_t all = std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(expected_bytes_, 1)));
    const uint64_t least = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(bytes, 1)));
    slab_ = allocate_bytes(static_cast<int64_t>(std::max(least, std::min(all, kMaxSlabBytes))));
    used_bytes_ = 0;
  }
  expected_bytes_ -= bytes;
  const int64_t offset = used_bytes_ / static_cast<int64_t>(c10::elementSize(dtype));
  used_bytes_ += bytes;
  // A leaf of its own over the slab's memory: optimizers want no views.
  at::Tensor tensor = at::empty({0}, slab_.options().dtype(dtype).pinned_memory(false));
  return tensor.set_(slab_.storage(), offset, {numel});
}

}  // namespace lockstep::shard
