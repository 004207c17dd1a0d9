#include "parallel/coalesced_broadcast.h"

#include <ATen/ATen.h>

#include "parallel/bucket_plan.h"

namespace lockstep::parallel {

namespace {

// From this size on a broadcast's latency does not matter, and a copy would only need memory.
constexpr int64_t kBroadcastBytes = 1 << 20;

// The alignment of any dtype: the widest element is a complex double.
constexpr int64_t kAlignmentBytes = 16;

int64_t aligned_bytes(const at::Tensor& tensor) {
  return (static_cast<int64_t>(tensor.nbytes()) + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

bool is_sent_alone(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() &&
         static_cast<int64_t>(tensor.nbytes()) >= kBroadcastBytes;
}

void broadcast_chunk(const BucketLayout& chunk, const std::vector<at::Tensor>& tensors,
                     const Communicator& communicator, int root) {
  const at::Tensor bytes =
      at::empty({chunk.numel}, at::TensorOptions().dtype(at::kByte).device(chunk.device));
  const auto part = [&](const BucketSlot& slot) {
    const at::Tensor& tensor = tensors[slot.item];
    return bytes.narrow(0, slot.offset, static_cast<int64_t>(tensor.nbytes()))
        .view(tensor.scalar_type())
        .view(tensor.sizes());
  };
  const bool is_root = communicator.rank() == root;
  if (is_root) {
    for (const BucketSlot& slot : chunk.slots) part(slot).copy_(tensors[slot.item]);
  }
  communicator.broadcast(bytes, root).wait();
  if (!is_root) {
    for (const BucketSlot& slot : chunk.slots) tensors[slot.item].copy_(part(slot));
  }
}

}  // namespace

void broadcast_coalesced(const std::vector<at::Tensor>& tensors, const Communicator& communicator, int root) {
  if (communicator.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> together;
  std::vector<BucketItem> items;
  for (const at::Tensor& tensor : tensors) {
    if (is_sent_alone(tensor)) {
      communicator.broadcast(tensor.detach(), root).wait();
    } else {
      together.push_back(tensor);
      items.push_back({aligned_bytes(tensor), at::kByte, tensor.device()});
    }
  }
  for (const BucketLayout& chunk : plan_buckets(items, {kBroadcastBytes, kBroadcastBytes})) {
    if (chunk.numel > 0) broadcast_chunk(chunk, together, communicator, root);
  }
}

}  // namespace lockstep::parallel
