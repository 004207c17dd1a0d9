#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <lockstep/nn.h>

#include "base/mutex.h"

namespace lockstep::nn {
namespace {

// While it lives, cuDNN is the first choice of LibTorch's attention. The order is LibTorch's global state.
class CudnnFirst {
 public:
  CudnnFirst() : lock_(mutex()) {
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
  ~CudnnFirst() { at::globalContext().setSDPPriorityOrder(before_); }
  CudnnFirst(const CudnnFirst&) = delete;
  CudnnFirst& operator=(const CudnnFirst&) = delete;

 private:
  static base::Mutex& mutex() {
    static base::Mutex mutex;
    return mutex;
  }

  base::MutexLock lock_;
  std::vector<int64_t> before_;
};

}  // namespace

torch::Tensor attention(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                        const AttentionOptions& options) {
  const auto run = [&] {
    return at::scaled_dot_product_attention(query, key, value, /*attn_mask=*/std::nullopt, options.dropout,
                                            options.is_causal);
  };
  if (!query.is_cuda()) return run();
  const CudnnFirst cudnn_first;
  return run();
}

}  // namespace lockstep::nn
