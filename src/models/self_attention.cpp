#include "models/self_attention.h"

#include <ATen/autocast_mode.h>

namespace lockstep::models {

SelfAttention::SelfAttention(int64_t hidden_size, int64_t heads, double dropout)
    : heads_(heads), dropout_(dropout) {
  in_proj_weight_ = register_parameter("in_proj_weight", torch::empty({3 * hidden_size, hidden_size}));
  in_proj_bias_ = register_parameter("in_proj_bias", torch::empty({3 * hidden_size}));
  out_proj_ = register_module("out_proj", torch::nn::Linear(hidden_size, hidden_size));
  torch::nn::init::xavier_uniform_(in_proj_weight_);
  torch::nn::init::zeros_(in_proj_bias_);
  torch::nn::init::zeros_(out_proj_->bias);
}

// Python's rule for its one-call kernel, which rounds differently.
bool SelfAttention::can_run_native(const at::Tensor& x) const {
  if (is_training() || heads_ % 2 != 0 || x.scalar_type() != in_proj_weight_.scalar_type()) return false;
  if (at::autocast::is_autocast_enabled(at::kCUDA) || !(x.is_cpu() || x.is_cuda())) return false;
  return !at::GradMode::is_enabled() ||
         !(x.requires_grad() || in_proj_weight_.requires_grad() || in_proj_bias_.requires_grad() ||
           out_proj_->weight.requires_grad() || out_proj_->bias.requires_grad());
}

at::Tensor SelfAttention::forward(const at::Tensor& x) {
  const int64_t batch = x.size(0);
  const int64_t length = x.size(1);
  const int64_t hidden = x.size(2);
  if (can_run_native(x)) {
    return std::get<0>(at::_native_multi_head_attention(x, x, x, hidden, heads_, in_proj_weight_,
                                                        in_proj_bias_, out_proj_->weight, out_proj_->bias,
                                                        /*mask=*/std::nullopt,
                                                        /*need_weights=*/false));
  }
  // Length first, as in Python: it decides which sums the matrix products are made of.
  const at::Tensor packed = torch::linear(x.transpose(1, 0), in_proj_weight_, in_proj_bias_)
                                .unflatten(-1, {3, hidden})
                                .unsqueeze(0)
                                .transpose(0, -2)
                                .squeeze(-2)
                                .contiguous();
  const auto split_heads = [&](const at::Tensor& part) {
    return part.view({length, batch * heads_, hidden / heads_})
        .transpose(0, 1)
        .view({batch, heads_, length, hidden / heads_});
  };
  const at::Tensor attended =
      at::scaled_dot_product_attention(split_heads(packed[0]), split_heads(packed[1]), split_heads(packed[2]),
                                       /*attn_mask=*/std::nullopt, is_training() ? dropout_ : 0.0);
  const at::Tensor rows = attended.permute({2, 0, 1, 3}).contiguous().view({batch * length, hidden});
  return out_proj_->forward(rows).view({length, batch, hidden}).transpose(1, 0);
}

}  // namespace lockstep::models
