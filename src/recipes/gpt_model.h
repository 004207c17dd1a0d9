#pragma once

#include <lockstep/models.h>
#include <lockstep/nn.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

namespace lockstep::models {

// The keys and values of the places that one attention has seen, [N, heads, context, size of a head].
struct AttentionCache {
  at::Tensor keys;
  at::Tensor values;
};

// The places that a Gpt has seen, so that each further token costs one place.
struct GptCache {
  std::vector<AttentionCache> blocks;
  int64_t length = 0;  // places
};

// A Linear layer whose parameters have no values yet: Gpt draws all of its own.
class GptLinear final : public torch::nn::Module {
 public:
  GptLinear(int64_t inputs, int64_t outputs);
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight, bias); }

  at::Tensor weight, bias;
};

// Attention of each place to itself and to those before it.
class GptAttention final : public torch::nn::Module {
 public:
  explicit GptAttention(const GptOptions& options);
  // [N, length, hidden_size] to the same.
  at::Tensor forward(const at::Tensor& x);
  // The same for places that follow `seen` places of the cache; adds them to it.
  at::Tensor forward_cached(const at::Tensor& x, AttentionCache& cache, int64_t seen);

 private:
  // Query, key and value, [N, heads, length, size of a head].
  std::vector<at::Tensor> project(const at::Tensor& x);
  at::Tensor merge_heads(const at::Tensor& x);

  int64_t heads_;
  int64_t context_;
  std::shared_ptr<GptLinear> c_attn_, c_proj_;
};

class GptMlp final : public torch::nn::Module {
 public:
  explicit GptMlp(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<GptLinear> c_fc_, c_proj_;
};

// Attention and MLP, each with a LayerNorm before it and its input added after it.
class GptBlock : public torch::nn::Module {
 public:
  explicit GptBlock(const GptOptions& options);
  // The input is value + branch, which the first LayerNorm adds in its pass; the branch may be undefined. The
  // result is such a pair.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& value, const at::Tensor& branch);
  at::Tensor forward_cached(const at::Tensor& x, AttentionCache& cache, int64_t seen);

 private:
  nn::LayerNorm ln_1_;
  std::shared_ptr<GptAttention> attn_;
  nn::LayerNorm ln_2_;
  std::shared_ptr<GptMlp> mlp_;
};

// GPT-2 with the parameter names of Hugging Face's GPT2LMHeadModel.
class Gpt final : public torch::nn::Module {
 public:
  // ConfigError: a size that is not possible.
  explicit Gpt(const GptOptions& options);

  const GptOptions& options() const { return options_; }

  // Tokens [N, length] to scores [N, length, vocabulary].
  at::Tensor forward(const at::Tensor& tokens);
  // The mean cross entropy of the scores for the tokens [N, length] that follow.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& next_tokens);
  // The scores [N, vocabulary] after the last of these tokens, which follow those of the cache. Adds them
  // to it: length and `cache.length` together are at most the context. A new cache is empty.
  at::Tensor forward_cached(const at::Tensor& tokens, GptCache& cache);

 private:
  void check_tokens(const at::Tensor& tokens) const;
  void initialize();
  at::Tensor embed(const at::Tensor& tokens, int64_t first_place) const;
  // What the head is applied to, [N, length, hidden_size].
  at::Tensor hidden(const at::Tensor& tokens);
  at::Tensor head(const at::Tensor& x);

  GptOptions options_;
  at::Tensor token_embedding_;  // also the head
  at::Tensor position_embedding_;
  // Each is gathered by itself where parameters are sharded over the ranks.
  std::vector<std::shared_ptr<ShardedImpl<GptBlock>>> blocks_;
  nn::LayerNorm ln_f_{nullptr};
};

// Floating-point operations of a forward and a backward for each token, as PaLM's authors count them: six
// for each parameter of a matrix, and those of attention, without recomputation.
double gpt_flops_per_token(const GptOptions& options);

}  // namespace lockstep::models
