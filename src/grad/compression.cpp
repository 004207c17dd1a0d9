#include "grad/compression.h"

#include <ATen/ATen.h>

#include <vector>

namespace lockstep::grad {

namespace {

PendingReduction reduce_as(at::ScalarType dtype, std::vector<at::Tensor>& scratch,
                           const GradientBucket& bucket, const Communicator& communicator) {
  const at::Tensor& gradients = bucket.gradients;
  if (!gradients.is_floating_point() ||
      static_cast<size_t>(gradients.element_size()) <= c10::elementSize(dtype)) {
    return {communicator.all_reduce(gradients, ReduceOp::kMean), {}};
  }
  scratch.resize(bucket.count);
  at::Tensor& small = scratch[bucket.index];
  if (!small.defined()) {
    small = communicator.allocate(gradients.numel(), at::empty({0}, gradients.options().dtype(dtype)));
  }
  small.copy_(gradients).div_(communicator.size());
  return {communicator.all_reduce(small, ReduceOp::kSum), [&gradients, &small] { gradients.copy_(small); }};
}

}  // namespace

GradientHook make_compression_hook(GradientCompression compression) {
  if (compression == GradientCompression::kNone) return {};
  const auto dtype = compression == GradientCompression::kFloat16 ? at::kHalf : at::kBFloat16;
  return [dtype, scratch = std::make_shared<std::vector<at::Tensor>>()](const GradientBucket& bucket,
                                                                        const Communicator& communicator) {
    return reduce_as(dtype, *scratch, bucket, communicator);
  };
}

}  // namespace lockstep::grad
