#include "nn/attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <lockstep/nn.h>

#include "nn/kernels.h"

namespace lockstep::nn {
namespace {

base::Mutex& mutex_of_order() {
  static base::Mutex mutex;
  return mutex;
}

// As 91501; 0: none.
int64_t cudnn_version(const c10::Device& device) {
  if (!device.is_cuda() || !at::globalContext().hasCuDNN()) return 0;
  return at::globalContext().versionCuDNN();
}

}  // namespace

bool prefers_cudnn(int capability, int64_t cudnn_version) {
  return capability >= 90 && cudnn_version >= 91501;
}

CudnnFirst::CudnnFirst(const c10::Device& device) {
  if (!prefers_cudnn(compute_capability(device), cudnn_version(device))) return;
  lock_.emplace(mutex_of_order());
  at::Context& context = at::globalContext();
  for (const at::SDPBackend backend : context.sDPPriorityOrder()) {
    before_.push_back(static_cast<int64_t>(backend));
  }
  std::vector<int64_t> order{static_cast<int64_t>(at::SDPBackend::cudnn_attention)};
  for (const int64_t backend : before_) {
    if (backend != order.front()) order.push_back(backend);
  }
  context.setSDPPriorityOrder(order);
}

CudnnFirst::~CudnnFirst() {
  if (lock_) at::globalContext().setSDPPriorityOrder(before_);
}

torch::Tensor attention(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                        const AttentionOptions& options) {
  const CudnnFirst cudnn_first(query.device());
  return at::scaled_dot_product_attention(query, key, value, /*attn_mask=*/std::nullopt, options.dropout,
                                          options.is_causal);
}

}  // namespace lockstep::nn
