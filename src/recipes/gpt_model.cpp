#include "recipes/gpt_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/json.h>

#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <tuple>

#include "recipes/model_input.h"

namespace lockstep::models {
namespace {

constexpr auto kGpt = "the GPT";
constexpr int64_t kHeadSize = 64;  // of all of GPT-2's models

nn::LayerNorm make_gpt_norm(const GptOptions& options) {
  return nn::LayerNorm(torch::nn::LayerNormOptions({options.hidden_size}));
}

GptOptions checked_gpt(const GptOptions& options) {
  require_positive(kGpt, "vocabulary", options.vocabulary);
  require_positive(kGpt, "context", options.context);
  require_positive(kGpt, "layers", options.layers);
  require_positive(kGpt, "heads", options.heads);
  require_positive(kGpt, "hidden_size", options.hidden_size);
  if (options.hidden_size % options.heads != 0) {
    throw ConfigError("models",
                      fmt::format("the hidden size must be a multiple of the number of heads: {} and {}",
                                  options.hidden_size, options.heads));
  }
  return options;
}

// A module that has one parameter: "wte.weight".
class GptEmbedding final : public torch::nn::Module {
 public:
  explicit GptEmbedding(const at::Tensor& weight) { register_parameter("weight", weight); }
};

}  // namespace

GptLinear::GptLinear(int64_t inputs, int64_t outputs)
    : weight(register_parameter("weight", torch::empty({outputs, inputs}))),
      bias(register_parameter("bias", torch::empty({outputs}))) {}

GptAttention::GptAttention(const GptOptions& options)
    : heads_(options.heads),
      context_(options.context),
      c_attn_(register_module("c_attn",
                              std::make_shared<GptLinear>(options.hidden_size, 3 * options.hidden_size))),
      c_proj_(
          register_module("c_proj", std::make_shared<GptLinear>(options.hidden_size, options.hidden_size))) {}

std::vector<at::Tensor> GptAttention::project(const at::Tensor& x) {
  const at::Tensor packed = c_attn_->forward(x);
  if (packed.is_cuda()) {
    // The backward of unbind() is one copy; that of three chunks clears and adds whole tensors.
    std::vector<at::Tensor> parts = packed.unflatten(-1, {3, heads_, -1}).unbind(2);
    for (at::Tensor& part : parts) part = part.transpose(1, 2);
    return parts;
  }
  std::vector<at::Tensor> parts = packed.chunk(3, -1);
  for (at::Tensor& part : parts) part = part.unflatten(-1, {heads_, -1}).transpose(1, 2);
  return parts;
}

at::Tensor GptAttention::merge_heads(const at::Tensor& x) {
  return c_proj_->forward(x.transpose(1, 2).flatten(2));
}

at::Tensor GptAttention::forward(const at::Tensor& x) {
  const auto parts = project(x);
  return merge_heads(nn::attention(parts[0], parts[1], parts[2], {.is_causal = true}));
}

at::Tensor GptAttention::forward_cached(const at::Tensor& x, AttentionCache& cache, int64_t seen) {
  const auto parts = project(x);
  const int64_t length = x.size(1);
  for (const auto& [all, part] : {std::pair(&cache.keys, parts[1]), {&cache.values, parts[2]}}) {
    if (!all->defined()) {
      *all = at::empty({part.size(0), part.size(1), context_, part.size(3)}, part.options());
    }
    all->narrow(2, seen, length).copy_(part);
  }
  const at::Tensor keys = cache.keys.narrow(2, 0, seen + length);
  const at::Tensor values = cache.values.narrow(2, 0, seen + length);
  // The i-th new place sees the places up to seen + i. One place sees all of them.
  at::Tensor mask;
  if (length > 1 && seen > 0) {
    mask = at::ones({length, seen + length}, x.options().dtype(at::kBool)).tril(seen);
  }
  return merge_heads(at::scaled_dot_product_attention(
      parts[0], keys, values, mask.defined() ? std::optional(mask) : std::nullopt, /*dropout_p=*/0,
      /*is_causal=*/length > 1 && seen == 0));
}

GptMlp::GptMlp(const GptOptions& options)
    : c_fc_(
          register_module("c_fc", std::make_shared<GptLinear>(options.hidden_size, 4 * options.hidden_size))),
      c_proj_(register_module("c_proj",
                              std::make_shared<GptLinear>(4 * options.hidden_size, options.hidden_size))) {}

at::Tensor GptMlp::forward(const at::Tensor& x) {
  return nn::gelu_mlp(x, c_fc_->weight, c_fc_->bias, c_proj_->weight, c_proj_->bias);
}

GptBlock::GptBlock(const GptOptions& options)
    : ln_1_(register_module("ln_1", make_gpt_norm(options))),
      attn_(register_module("attn", std::make_shared<GptAttention>(options))),
      ln_2_(register_module("ln_2", make_gpt_norm(options))),
      mlp_(register_module("mlp", std::make_shared<GptMlp>(options))) {}

std::pair<at::Tensor, at::Tensor> GptBlock::forward(const at::Tensor& value, const at::Tensor& branch) {
  nn::LayerNormImpl::Sum first{value, {}};
  if (branch.defined()) {
    first = ln_1_->add(value, branch);
  } else {
    first.normalized = ln_1_->forward(value);
  }
  const auto [attended, normalized] = ln_2_->add(first.sum, attn_->forward(first.normalized));
  return {attended, mlp_->forward(normalized)};
}

at::Tensor GptBlock::forward_cached(const at::Tensor& x, AttentionCache& cache, int64_t seen) {
  const at::Tensor attended = x + attn_->forward_cached(ln_1_->forward(x), cache, seen);
  return attended + mlp_->forward(ln_2_->forward(attended));
}

Gpt::Gpt(const GptOptions& options)
    : options_(checked_gpt(options)),
      token_embedding_(torch::empty({options.vocabulary, options.hidden_size}, torch::requires_grad())),
      position_embedding_(torch::empty({options.context, options.hidden_size}, torch::requires_grad())) {
  auto transformer = std::make_shared<torch::nn::Module>("transformer");
  transformer->register_module("wte", std::make_shared<GptEmbedding>(token_embedding_));
  transformer->register_module("wpe", std::make_shared<GptEmbedding>(position_embedding_));
  torch::nn::ModuleList blocks;
  for (int64_t i = 0; i < options.layers; ++i) {
    blocks_.push_back(std::make_shared<ShardedImpl<GptBlock>>(options));
    blocks->push_back(blocks_.back());
  }
  transformer->register_module("h", blocks.ptr());
  ln_f_ = transformer->register_module("ln_f", make_gpt_norm(options));
  register_module("transformer", transformer);
  initialize();
}

void Gpt::initialize() {
  const torch::NoGradGuard no_grad;
  const double into_residual = 0.02 / std::sqrt(2.0 * static_cast<double>(options_.layers));
  for (const auto& item : named_parameters()) {
    if (item.value().dim() > 1) {
      const bool is_projection = item.key().ends_with(".c_proj.weight");
      torch::nn::init::normal_(item.value(), 0, is_projection ? into_residual : 0.02);
    } else if (item.key().find(".ln_") == std::string::npos) {
      torch::nn::init::zeros_(item.value());
    }
  }
}

void Gpt::check_tokens(const at::Tensor& tokens) const {
  const bool has_shape = tokens.dim() == 2 && tokens.size(1) >= 1 && tokens.size(1) <= options_.context;
  if (has_shape && (tokens.scalar_type() == at::kLong || tokens.scalar_type() == at::kInt)) return;
  throw ConfigError(
      "models", fmt::format("{} takes tokens as integers [N, 1 to {}]: got {} [{}]", kGpt, options_.context,
                            c10::toString(tokens.scalar_type()), fmt::join(tokens.sizes(), ", ")));
}

at::Tensor Gpt::embed(const at::Tensor& tokens, int64_t first_place) const {
  return torch::embedding(token_embedding_, tokens) +
         position_embedding_.narrow(0, first_place, tokens.size(1));
}

at::Tensor Gpt::head(const at::Tensor& x) { return torch::linear(x, token_embedding_); }

at::Tensor Gpt::hidden(const at::Tensor& tokens) {
  check_tokens(tokens);
  at::Tensor value = embed(tokens, 0);
  at::Tensor branch;
  for (const auto& block : blocks_) std::tie(value, branch) = block->forward(value, branch);
  return ln_f_->add(value, branch).normalized;
}

at::Tensor Gpt::forward(const at::Tensor& tokens) { return head(hidden(tokens)); }

at::Tensor Gpt::loss(const at::Tensor& tokens, const at::Tensor& next_tokens) {
  return nn::linear_cross_entropy(hidden(tokens).flatten(0, 1), token_embedding_, next_tokens.flatten());
}

at::Tensor Gpt::forward_cached(const at::Tensor& tokens, GptCache& cache) {
  check_tokens(tokens);
  const int64_t seen = cache.length;
  if (seen + tokens.size(1) > options_.context) {
    throw ConfigError("models", fmt::format("{} has a context of {}, and the cache {} places before these {}",
                                            kGpt, options_.context, seen, tokens.size(1)));
  }
  cache.blocks.resize(blocks_.size());
  at::Tensor x = embed(tokens, seen);
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->forward_cached(x, cache.blocks[i], seen);
  cache.length += tokens.size(1);
  return head(ln_f_->forward(x.select(1, -1)));
}

double gpt_flops_per_token(const GptOptions& options) {
  const auto hidden = static_cast<double>(options.hidden_size);
  const auto layers = static_cast<double>(options.layers);
  const double matrices = 12 * layers * hidden * hidden + static_cast<double>(options.vocabulary) * hidden;
  return 6 * matrices + 12 * layers * hidden * static_cast<double>(options.context);
}

GptOptions GptOptions::preset(std::string_view name) {
  struct Preset {
    std::string_view name;
    GptOptions options;
  };
  static constexpr Preset kPresets[] = {
      {"tiny", {.vocabulary = 256, .context = 128, .layers = 4, .heads = 2, .hidden_size = 128}},
      {"124M", {.layers = 12, .heads = 12, .hidden_size = 768}},
      {"355M", {.layers = 24, .heads = 16, .hidden_size = 1024}},
      {"774M", {.layers = 36, .heads = 20, .hidden_size = 1280}},
      {"1558M", {.layers = 48, .heads = 25, .hidden_size = 1600}},
  };
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset.options;
  }
  throw ConfigError("models", fmt::format("no such GPT, give tiny, 124M, 355M, 774M or 1558M: '{}'", name));
}

Model gpt(const GptOptions& options) { return std::make_shared<Gpt>(options); }

at::Tensor gpt_loss(const Model& model, const at::Tensor& tokens, const at::Tensor& next_tokens) {
  auto* const gpt = dynamic_cast<Gpt*>(model.module().get());
  if (gpt == nullptr) throw ConfigError("models", "gpt_loss() takes a model that gpt() made");
  return gpt->loss(tokens, next_tokens);
}

// --- weights of Hugging Face ---

namespace {

// Hugging Face's Conv1D has these matrices as [inputs, outputs].
bool is_conv1d(std::string_view name) {
  return name.starts_with("h.") && (name.ends_with(".c_attn.weight") || name.ends_with(".c_proj.weight") ||
                                    name.ends_with(".c_fc.weight"));
}

std::string_view without_prefixes(std::string_view name) {
  for (const std::string_view prefix : {"module.", "_orig_mod.", "transformer."}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  return name;
}

using GptWeights = std::map<std::string, at::Tensor>;

// By their names without "transformer.", the matrices as in Linear layers.
GptWeights plain_weights(const NamedTensors& tensors) {
  GptWeights weights;
  for (const auto& [name, tensor] : tensors) {
    const std::string_view plain = without_prefixes(name);
    // The masks of older versions of transformers.
    if (plain.ends_with(".attn.bias") || plain.ends_with(".attn.masked_bias")) continue;
    weights.emplace(plain, tensor);
  }
  const auto head = weights.find("lm_head.weight");
  const auto embedding = weights.find("wte.weight");
  if (head != weights.end() && embedding != weights.end() && head->second.equal(embedding->second)) {
    weights.erase(head);
  }
  const auto packed = weights.find("h.0.attn.c_attn.weight");
  const bool is_transposed =
      packed != weights.end() && packed->second.dim() == 2 && packed->second.size(1) > packed->second.size(0);
  for (auto& [name, tensor] : weights) {
    if (is_transposed && is_conv1d(name) && tensor.dim() == 2) tensor = tensor.t();
  }
  return weights;
}

const at::Tensor& weight_of(const GptWeights& weights, const std::string& name) {
  const auto found = weights.find(name);
  if (found == weights.end()) {
    throw ConfigError("models", fmt::format("these are no weights of a GPT-2: '{}' is missing", name));
  }
  return found->second;
}

}  // namespace

GptOptions GptOptions::of_weights(const NamedTensors& weights) {
  const GptWeights plain = plain_weights(weights);
  const at::Tensor& tokens = weight_of(plain, "wte.weight");
  const at::Tensor& places = weight_of(plain, "wpe.weight");
  if (tokens.dim() != 2 || places.dim() != 2 || tokens.size(1) != places.size(1) ||
      tokens.size(1) % kHeadSize != 0) {
    throw ConfigError(
        "models", fmt::format("the embeddings of a GPT-2 have a width that is a multiple of {}: got "
                              "wte.weight [{}] and wpe.weight [{}]",
                              kHeadSize, fmt::join(tokens.sizes(), ", "), fmt::join(places.sizes(), ", ")));
  }
  int64_t layers = 0;
  while (plain.contains(fmt::format("h.{}.ln_1.weight", layers))) ++layers;
  return checked_gpt({.vocabulary = tokens.size(0),
                      .context = places.size(0),
                      .layers = layers,
                      .heads = tokens.size(1) / kHeadSize,
                      .hidden_size = tokens.size(1)});
}

void load_gpt(const Model& model, const std::filesystem::path& file) {
  const GptWeights weights = plain_weights(read_weights(file));
  const NamedTensors parameters = named_parameters(*model.module());
  std::map<std::string, at::Tensor> sources;
  for (const auto& [name, parameter] : parameters) {
    const std::string plain(without_prefixes(name));
    const auto found = weights.find(plain);
    if (found == weights.end()) {
      throw ConfigError("models",
                        fmt::format("'{}' has no weight '{}' for this model", file.string(), plain));
    }
    if (found->second.sizes() != parameter.sizes()) {
      throw ConfigError("models", fmt::format("the weight '{}' is [{}] in '{}' and [{}] in this model", plain,
                                              fmt::join(found->second.sizes(), ", "), file.string(),
                                              fmt::join(parameter.sizes(), ", ")));
    }
    sources.insert(*found);
  }
  for (const auto& [name, tensor] : weights) {
    if (sources.contains(name)) continue;
    throw ConfigError("models",
                      fmt::format("'{}' has the weight '{}', which this model lacks", file.string(), name));
  }
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters) {
    parameter.copy_(sources.at(std::string(without_prefixes(name))));
  }
}

void save_gpt(const Model& model, const std::filesystem::path& folder) {
  NamedTensors tensors = named_parameters(*model.module());
  for (auto& [name, tensor] : tensors) {
    if (is_conv1d(without_prefixes(name))) tensor = tensor.t();
  }
  const GptOptions options = dynamic_cast<const Gpt&>(*model.module()).options();
  const Json config = {{"model_type", "gpt2"},
                       {"architectures", Json::array({"GPT2LMHeadModel"})},
                       {"vocab_size", options.vocabulary},
                       {"n_positions", options.context},
                       {"n_embd", options.hidden_size},
                       {"n_layer", options.layers},
                       {"n_head", options.heads},
                       {"activation_function", "gelu_new"},
                       {"layer_norm_epsilon", 1e-5},
                       {"resid_pdrop", 0.0},
                       {"embd_pdrop", 0.0},
                       {"attn_pdrop", 0.0},
                       {"tie_word_embeddings", true},
                       {"bos_token_id", nullptr},
                       {"eos_token_id", nullptr}};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  save_weights(tensors, folder / "model.safetensors");
  std::ofstream file(folder / "config.json");
  file << config.dump({.indent = 2, .order = Json::Order::kAsAdded}) << '\n';
  file.close();
  if (file.fail()) {
    throw ConfigError("models", fmt::format("cannot write '{}'", (folder / "config.json").string()));
  }
}

}  // namespace lockstep::models
