// `lockstep generate`: text of a trained GPT.

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/models.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "recipes/byte_pair_tokenizer.h"
#include "recipes/generate.h"
#include "train/device.h"

namespace lockstep::cli {
namespace {

constexpr int64_t kByteVocabulary = 256;

struct GenerateFlags {
  std::string checkpoint;
  std::string prompt;
  std::vector<std::string> tokenizer;
  recipes::GenerateOptions draw;
  std::string compute_setup = "auto";
};

// Between text and tokens: bytes, or those of a tokenizer.
class TextTokens {
 public:
  TextTokens(const std::vector<std::string>& files, int64_t vocabulary) {
    if (!files.empty()) {
      tokenizer_ =
          recipes::BytePairTokenizer::read(std::vector<std::filesystem::path>(files.begin(), files.end()));
    } else if (vocabulary != kByteVocabulary) {
      throw ConfigError(
          "generate",
          fmt::format("the model has {} tokens, which are no bytes: give --tokenizer", vocabulary));
    }
  }

  // An empty text begins as a new text does in GPT-2's training.
  std::vector<int64_t> tokens_of(const std::string& text) const {
    if (tokenizer_ && text.empty() && stop()) return {*stop()};
    if (tokenizer_) return tokenizer_->encode(text);
    std::vector<int64_t> tokens;
    for (const char each : text) tokens.push_back(static_cast<unsigned char>(each));
    return tokens;
  }
  std::string text_of(int64_t token) const {
    return tokenizer_ ? tokenizer_->bytes_of(token) : std::string(1, static_cast<char>(token));
  }
  // A model may have more tokens than its tokenizer, up to a multiple of 64.
  int64_t size() const { return tokenizer_ ? tokenizer_->size() : kByteVocabulary; }
  std::optional<int64_t> stop() const { return tokenizer_ ? tokenizer_->end_of_text() : std::nullopt; }

 private:
  std::optional<recipes::BytePairTokenizer> tokenizer_;
};

void print_at_once(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

int generate(const GenerateFlags& flags) {
  const Model model = models::gpt(models::GptOptions::of_weights(read_weights(flags.checkpoint)));
  models::load_gpt(model, flags.checkpoint);
  model.module()->eval();
  model.module()->to(train::choose_device({}, flags.compute_setup));
  const int64_t vocabulary = model.module()->parameters().front().size(0);
  const TextTokens text(flags.tokenizer, vocabulary);
  recipes::GenerateOptions draw = flags.draw;
  draw.stop = text.stop();
  draw.vocabulary = text.size();
  const std::vector<int64_t> prompt = text.tokens_of(flags.prompt);
  print_at_once(flags.prompt);
  recipes::generate_tokens(model, prompt, draw, [&](int64_t token) { print_at_once(text.text_of(token)); });
  print_at_once("\n");
  return kExitSuccess;
}

}  // namespace

int run_generate(int argc, const char* const* argv) {
  GenerateFlags flags;
  config::OptionTable(
      "Continues a text with a GPT that `lockstep train gpt` trained, or with Hugging Face's GPT-2.\n"
      "\n"
      "  lockstep generate --checkpoint runs/gpt --prompt \"Once upon a time\"",
      config::kNoVariables)
      .add("checkpoint", flags.checkpoint,
           "run, checkpoint, or weights file of a GPT-2: *.safetensors, *.bin", {.required = true})
      .add("prompt", flags.prompt, "the text to continue")
      .add(
          "tokenizer", flags.tokenizer,
          "GPT-2's tokenizer: a folder, tokenizer.json, or vocabulary and merges; left out: tokens are bytes",
          {.several = true})
      .add("max_tokens", flags.draw.max_tokens, "number of tokens to add", {.minimum = 1})
      .add("temperature", flags.draw.temperature,
           "divides the scores before a token is drawn; 0: always the most probable token", {.minimum = 0})
      .add("top_k", flags.draw.top_k, "draw from this many of the most probable tokens; 0: from all",
           {.minimum = 0})
      .add("seed", flags.draw.seed, "of the random draws")
      .add("compute_setup", flags.compute_setup, "device: cpu, gpu or auto",
           {.choices = {"cpu", "gpu", "auto"}})
      .parse(argc, argv);
  return generate(flags);
}

}  // namespace lockstep::cli
