#pragma once

#include <torch/torch.h>

namespace lockstep::models {

// Python's nn.MultiheadAttention as torchvision's encoder calls it: query, key and value
// are one tensor, batch first, no mask, no weights asked for. torch::nn's class computes the
// products itself; Python's calls scaled_dot_product_attention, and so does this one.
class SelfAttention final : public torch::nn::Module {
 public:
  SelfAttention(int64_t hidden_size, int64_t heads, double dropout);

  // [N, length, hidden_size] to the same.
  at::Tensor forward(const at::Tensor& x);

 private:
  bool can_run_native(const at::Tensor& x) const;

  int64_t heads_;
  double dropout_;
  at::Tensor in_proj_weight_;  // query, key and value, one below the other
  at::Tensor in_proj_bias_;
  torch::nn::Linear out_proj_{nullptr};
};

}  // namespace lockstep::models
