#pragma once

#include <lockstep/models.h>
#include <lockstep/nn.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

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

// torchvision's EncoderBlock: attention and a two-layer MLP, each with a LayerNorm before
// it and its input added after it.
class EncoderBlock : public torch::nn::Module {
 public:
  explicit EncoderBlock(const VisionTransformerOptions& options);
  // The input is value + branch, which the first LayerNorm adds in its pass; the branch may be undefined. The
  // result is such a pair.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& value, const at::Tensor& branch);

 private:
  nn::LayerNorm ln_1_;
  std::shared_ptr<SelfAttention> self_attention_;
  torch::nn::Dropout dropout_;
  nn::LayerNorm ln_2_;
  torch::nn::Linear mlp_in_;
  torch::nn::Linear mlp_out_;
};

// torchvision's Encoder: position embedding, the blocks, a last LayerNorm.
class Encoder final : public torch::nn::Module {
 public:
  explicit Encoder(const VisionTransformerOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor pos_embedding_;
  torch::nn::Dropout dropout_;
  // With sharded parameters (ZeRO stage 3) each block is gathered by itself.
  std::vector<std::shared_ptr<ShardedImpl<EncoderBlock>>> blocks_;
  nn::LayerNorm ln_{nullptr};
};

// torchvision's VisionTransformer.
class VisionTransformer final : public torch::nn::Module {
 public:
  explicit VisionTransformer(const VisionTransformerOptions& options);
  at::Tensor forward(const at::Tensor& images);

 private:
  int64_t image_size_;
  at::Tensor class_token_;
  torch::nn::Conv2d conv_proj_;
  std::shared_ptr<Encoder> encoder_;
  torch::nn::Linear head_{nullptr};
};

}  // namespace lockstep::models
