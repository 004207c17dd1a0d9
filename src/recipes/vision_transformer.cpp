#include "recipes/vision_transformer.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "recipes/model_input.h"

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
  const double dropout = is_training() ? dropout_ : 0.0;
  if (x.is_cuda()) {  // without Python's copies between the products
    // The backward of unbind() is one copy; that of three selections clears and adds whole tensors.
    const std::vector<at::Tensor> parts = nn::linear(x, in_proj_weight_, in_proj_bias_)
                                              .view({batch, length, 3, heads_, hidden / heads_})
                                              .unbind(2);
    const at::Tensor attended = nn::attention(parts[0].transpose(1, 2), parts[1].transpose(1, 2),
                                              parts[2].transpose(1, 2), {.dropout = dropout});
    return nn::linear(attended.transpose(1, 2).reshape({batch, length, hidden}), out_proj_->weight,
                      out_proj_->bias);
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
                                       /*attn_mask=*/std::nullopt, dropout);
  const at::Tensor rows = attended.permute({2, 0, 1, 3}).contiguous().view({batch * length, hidden});
  return out_proj_->forward(rows).view({length, batch, hidden}).transpose(1, 0);
}

namespace {

constexpr auto kVisionTransformer = "the vision transformer";

nn::LayerNorm make_norm(int64_t size) { return nn::LayerNorm(torch::nn::LayerNormOptions({size}).eps(1e-6)); }

torch::nn::Conv2d make_patches(const VisionTransformerOptions& options) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(3, options.hidden_size, options.patch_size).stride(options.patch_size));
}

void check(const VisionTransformerOptions& options) {
  require_positive(kVisionTransformer, "image_size", options.image_size);
  require_positive(kVisionTransformer, "patch_size", options.patch_size);
  require_positive(kVisionTransformer, "layers", options.layers);
  require_positive(kVisionTransformer, "heads", options.heads);
  require_positive(kVisionTransformer, "hidden_size", options.hidden_size);
  require_positive(kVisionTransformer, "mlp_size", options.mlp_size);
  require_positive(kVisionTransformer, "classes", options.classes);
  require_probability(kVisionTransformer, "dropout", options.dropout);
  require_probability(kVisionTransformer, "attention_dropout", options.attention_dropout);
  if (options.image_size % options.patch_size != 0) {
    throw ConfigError("models", fmt::format("the image size must be a multiple of the patch size: {} and {}",
                                            options.image_size, options.patch_size));
  }
  if (options.hidden_size % options.heads != 0) {
    throw ConfigError("models",
                      fmt::format("the hidden size must be a multiple of the number of heads: {} and {}",
                                  options.hidden_size, options.heads));
  }
}

}  // namespace

EncoderBlock::EncoderBlock(const VisionTransformerOptions& options)
    : ln_1_(register_module("ln_1", make_norm(options.hidden_size))),
      self_attention_(register_module(
          "self_attention",
          std::make_shared<SelfAttention>(options.hidden_size, options.heads, options.attention_dropout))),
      dropout_(register_module("dropout", torch::nn::Dropout(options.dropout))),
      ln_2_(register_module("ln_2", make_norm(options.hidden_size))),
      mlp_in_(options.hidden_size, options.mlp_size),
      mlp_out_(options.mlp_size, options.hidden_size) {
  for (const auto& layer : {mlp_in_, mlp_out_}) {
    torch::nn::init::xavier_uniform_(layer->weight);
    torch::nn::init::normal_(layer->bias, 0, 1e-6);
  }
  // The activation and the dropouts are there for the numbers in the names: "mlp.0", "mlp.3".
  register_module(
      "mlp", torch::nn::Sequential(mlp_in_, torch::nn::GELU(), torch::nn::Dropout(options.dropout), mlp_out_,
                                   torch::nn::Dropout(options.dropout)));
}

std::pair<at::Tensor, at::Tensor> EncoderBlock::forward(const at::Tensor& value, const at::Tensor& branch) {
  nn::LayerNormImpl::Sum first{value, {}};
  if (branch.defined()) {
    first = ln_1_->add(value, branch);
  } else {
    first.normalized = ln_1_->forward(value);
  }
  const auto [attended, normalized] =
      ln_2_->add(first.sum, dropout_->forward(self_attention_->forward(first.normalized)));
  // linear(), as Python: of more than two dimensions Linear::forward multiplies and adds the bias in two
  // operations, which rounds differently.
  at::Tensor y = nn::linear(normalized, mlp_in_->weight, mlp_in_->bias);
  y = dropout_->forward(torch::gelu(y));
  return {attended, dropout_->forward(nn::linear(y, mlp_out_->weight, mlp_out_->bias))};
}

Encoder::Encoder(const VisionTransformerOptions& options) : dropout_(options.dropout) {
  const int64_t patches = options.image_size / options.patch_size;
  pos_embedding_ = register_parameter(
      "pos_embedding", torch::empty({1, patches * patches + 1, options.hidden_size}).normal_(0, 0.02));
  register_module("dropout", dropout_);
  torch::nn::Sequential layers;
  for (int64_t i = 0; i < options.layers; ++i) {
    blocks_.push_back(std::make_shared<ShardedImpl<EncoderBlock>>(options));
    layers->push_back(fmt::format("encoder_layer_{}", i), blocks_.back());
  }
  register_module("layers", layers);
  ln_ = register_module("ln", make_norm(options.hidden_size));
}

at::Tensor Encoder::forward(const at::Tensor& x) {
  at::Tensor value = dropout_->forward(x + pos_embedding_);
  at::Tensor branch;
  for (const auto& block : blocks_) std::tie(value, branch) = block->forward(value, branch);
  return ln_->add(value, branch).normalized;
}

VisionTransformer::VisionTransformer(const VisionTransformerOptions& options)
    : image_size_(options.image_size),
      class_token_(register_parameter("class_token", torch::zeros({1, 1, options.hidden_size}))),
      conv_proj_(register_module("conv_proj", make_patches(options))),
      encoder_(register_module("encoder", std::make_shared<Encoder>(options))),
      head_(options.hidden_size, options.classes) {
  torch::nn::Sequential heads;
  heads->push_back("head", head_);
  register_module("heads", heads);
  const double fan_in = 3.0 * static_cast<double>(options.patch_size * options.patch_size);
  truncated_normal(conv_proj_->weight, std::sqrt(1 / fan_in));
  torch::nn::init::zeros_(conv_proj_->bias);
  torch::nn::init::zeros_(head_->weight);
  torch::nn::init::zeros_(head_->bias);
}

at::Tensor VisionTransformer::forward(const at::Tensor& images) {
  check_images({kVisionTransformer, 3, image_size_, image_size_}, images);
  const at::Tensor patches = conv_proj_->forward(images).flatten(2).permute({0, 2, 1});
  const at::Tensor token = class_token_.expand({images.size(0), -1, -1});
  return head_->forward(encoder_->forward(torch::cat({token, patches}, 1)).select(1, 0));
}

VisionTransformerOptions VisionTransformerOptions::preset(std::string_view name) {
  VisionTransformerOptions options;
  if (name == "base") return options;
  if (name != "tiny" && name != "small") {
    throw ConfigError("models",
                      fmt::format("no such vision transformer, give tiny, small or base: '{}'", name));
  }
  options.heads = name == "tiny" ? 3 : 6;
  options.hidden_size = 64 * options.heads;
  options.mlp_size = 4 * options.hidden_size;
  return options;
}

Model vision_transformer(const VisionTransformerOptions& options) {
  check(options);
  return std::make_shared<VisionTransformer>(options);
}

LoadedWeights load_vision_transformer(const Model& model, const std::filesystem::path& file,
                                      const LoadWeightsOptions& options) {
  LoadWeightsOptions renaming = options;
  renaming.rename = [&](std::string name) {
    if (options.rename) name = options.rename(std::move(name));
    for (const auto& [old_part, part] :
         {std::pair(".mlp.linear_1.", ".mlp.0."), {".mlp.linear_2.", ".mlp.3."}}) {
      const size_t at = name.find(old_part);
      if (at != std::string::npos) name.replace(at, std::string_view(old_part).size(), part);
    }
    return name;
  };
  return load_weights(*model.module(), file, renaming);
}

}  // namespace lockstep::models
