#pragma once

#include <lockstep/models.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

#include "models/self_attention.h"

namespace lockstep::models {

// torchvision's EncoderBlock: attention and a two-layer MLP, each with a LayerNorm before
// it and its input added after it.
class EncoderBlock : public torch::nn::Module {
 public:
  explicit EncoderBlock(const VisionTransformerOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::LayerNorm ln_1_;
  std::shared_ptr<SelfAttention> self_attention_;
  torch::nn::Dropout dropout_;
  torch::nn::LayerNorm ln_2_;
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
  // Each is put together by itself where parameters are divided over the ranks.
  std::vector<std::shared_ptr<ShardedImpl<EncoderBlock>>> blocks_;
  torch::nn::LayerNorm ln_{nullptr};
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
