#include "recipes/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "recipes/gpt_model.h"

namespace lockstep::recipes {
namespace {

// Draws tokens by scores, on the CPU in float32.
class TokenDraw {
 public:
  explicit TokenDraw(const GenerateOptions& options)
      : options_(options), generator_(at::detail::createCPUGenerator(options.seed)) {}

  // `scores` has one dimension.
  int64_t operator()(at::Tensor scores) {
    if (options_.vocabulary > 0 && options_.vocabulary < scores.numel()) {
      scores = scores.narrow(0, 0, options_.vocabulary);
    }
    scores = scores.to(at::kCPU, at::kFloat);
    if (options_.temperature == 0) return scores.argmax().item<int64_t>();
    scores = scores / options_.temperature;
    if (options_.top_k > 0 && options_.top_k < scores.numel()) {
      const at::Tensor least = std::get<0>(scores.topk(options_.top_k)).index({-1});
      scores.masked_fill_(scores < least, -std::numeric_limits<float>::infinity());
    }
    return scores.softmax(0).multinomial(1, /*replacement=*/false, generator_).item<int64_t>();
  }

 private:
  const GenerateOptions& options_;
  at::Generator generator_;
};

void check_prompt(const std::vector<int64_t>& prompt, int64_t vocabulary) {
  if (prompt.empty()) throw ConfigError("generate", "the prompt has no token: give --prompt");
  const auto [least, highest] = std::minmax_element(prompt.begin(), prompt.end());
  if (*least >= 0 && *highest < vocabulary) return;
  throw ConfigError("generate",
                    fmt::format("the prompt has the token {}, and the model has {}: the tokenizer "
                                "is not the model's",
                                *least < 0 ? *least : *highest, vocabulary));
}

}  // namespace

void generate_tokens(const Model& model, const std::vector<int64_t>& prompt, const GenerateOptions& options,
                     const std::function<void(int64_t token)>& take) {
  auto& gpt = dynamic_cast<models::Gpt&>(*model.module());
  const int64_t context = gpt.options().context;
  check_prompt(prompt, gpt.options().vocabulary);
  const torch::NoGradGuard no_grad;
  const c10::Device device = gpt.parameters().front().device();
  TokenDraw draw(options);
  models::GptCache cache;
  std::vector<int64_t> all = prompt;
  int64_t pending = static_cast<int64_t>(all.size());  // tokens at the end that the cache lacks
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    if (cache.length + pending > context) {
      cache = {};
      pending = std::min(static_cast<int64_t>(all.size()), std::max<int64_t>(1, context / 2));
    }
    const std::vector<int64_t> newest(all.end() - pending, all.end());
    const at::Tensor tokens = torch::tensor(newest, at::kLong).unsqueeze(0).to(device);
    const int64_t token = draw(gpt.forward_cached(tokens, cache).select(0, 0));
    if (options.stop && token == *options.stop) return;
    take(token);
    all.push_back(token);
    pending = 1;
  }
}

}  // namespace lockstep::recipes
