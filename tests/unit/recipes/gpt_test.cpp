#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/json.h>
#include <lockstep/models.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <numeric>

#include "recipes/generate.h"
#include "recipes/gpt_model.h"
#include "recipes/token_data.h"
#include "support/config_error.h"
#include "support/temporary_folder.h"

namespace lockstep::recipes {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr models::GptOptions kSmall{
    .vocabulary = 40, .context = 16, .layers = 2, .heads = 2, .hidden_size = 128};

Model small_gpt(uint64_t seed = 3) {
  torch::manual_seed(seed);
  Model model = models::gpt(kSmall);
  // Larger than at the beginning of a training: places must matter.
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.module()->parameters()) parameter.normal_(0, 0.15);
  return model;
}

int64_t count_parameters(std::string_view preset) {
  const auto options = models::GptOptions::preset(preset);
  const int64_t hidden = options.hidden_size;
  return (options.vocabulary + options.context) * hidden +
         options.layers * (12 * hidden * hidden + 13 * hidden) + 2 * hidden;
}

TEST(GptTest, HasTheSizesOfGpt2) {
  EXPECT_EQ(count_parameters("124M"), 124439808);
  EXPECT_EQ(count_parameters("355M"), 354823168);
  EXPECT_EQ(count_parameters("774M"), 774030080);
  EXPECT_EQ(count_parameters("1558M"), 1557611200);
  const Model tiny = models::gpt(models::GptOptions::preset("tiny"));
  int64_t parameters = 0;
  for (const at::Tensor& parameter : tiny.module()->parameters()) parameters += parameter.numel();
  EXPECT_EQ(parameters, 842496);
  EXPECT_EQ(parameters, count_parameters("tiny"));
  EXPECT_THAT(error_of([] { models::GptOptions::preset("small"); }), HasSubstr("'small'"));
}

TEST(GptTest, StartsFromTheInitialWeightsOfGpt2) {
  torch::manual_seed(1);
  const Model model = models::gpt(models::GptOptions::preset("tiny"));
  for (const auto& [name, parameter] : named_parameters(*model.module())) {
    const auto deviation = parameter.std(/*unbiased=*/false).item<double>();
    const bool is_residual = name.ends_with("c_proj.weight");
    const double expected = parameter.dim() < 2 ? 0 : is_residual ? 0.02 / std::sqrt(8) : 0.02;
    EXPECT_NEAR(deviation, expected, expected / 50) << name;
    const bool is_norm_weight = parameter.dim() == 1 && name.ends_with(".weight");
    EXPECT_NEAR(parameter.mean().item<double>(), is_norm_weight ? 1 : 0, 1e-3) << name;
  }
}

TEST(GptTest, SeesOnlyThePlacesBeforeEachToken) {
  const Model model = small_gpt();
  const torch::NoGradGuard no_grad;
  const at::Tensor tokens = torch::arange(16).unsqueeze(0);
  at::Tensor changed = tokens.clone();
  changed[0][10] = 39;
  const at::Tensor before = model(tokens);
  const at::Tensor after = model(changed);
  EXPECT_TRUE(torch::allclose(before.narrow(1, 0, 10), after.narrow(1, 0, 10), 1e-5, 1e-6));
  for (int64_t i = 10; i < 16; ++i) EXPECT_FALSE(torch::allclose(before[0][i], after[0][i], 1e-3, 1e-3)) << i;
}

TEST(GptTest, NamesWhatIsWrongWithItsInput) {
  const Model model = small_gpt();
  EXPECT_THAT(error_of([&] {
                model(torch::zeros({1, 17}, at::kLong));
              }),
              HasSubstr("[N, 1 to 16]: got Long [1, 17]"));
  EXPECT_THAT(error_of([&] { model(torch::zeros({1, 4})); }), HasSubstr("got Float [1, 4]"));
  EXPECT_THAT(error_of([] { models::gpt({.heads = 5}); }), HasSubstr("768 and 5"));
  EXPECT_THAT(error_of([] { models::gpt({.context = 0}); }), HasSubstr("'context' of the GPT"));
}

TEST(GptTest, ScoresWithACacheAreThoseWithout) {
  const Model model = small_gpt();
  auto& gpt = dynamic_cast<models::Gpt&>(*model.module());
  const torch::NoGradGuard no_grad;
  const at::Tensor tokens = torch::randint(40, {2, 16}, at::kLong);
  const at::Tensor all = gpt.forward(tokens);
  models::GptCache cache;
  int64_t seen = 0;
  for (const int64_t length : {5, 1, 4, 1, 5}) {
    const at::Tensor scores = gpt.forward_cached(tokens.narrow(1, seen, length), cache);
    seen += length;
    EXPECT_TRUE(torch::allclose(scores, all.select(1, seen - 1), 1e-4, 1e-5)) << seen;
  }
  EXPECT_THAT(error_of([&] { gpt.forward_cached(tokens.narrow(1, 0, 1), cache); }),
              HasSubstr("a context of 16, and the cache 16 places before these 1"));
}

TEST(GptWeightsTest, GoToHuggingFaceAndBack) {
  const test::TemporaryFolder folder;
  const Model model = small_gpt();
  models::save_gpt(model, folder.path() / "saved");
  const auto file = folder.path() / "saved/model.safetensors";
  NamedTensors weights = read_weights(file);
  for (const auto& [name, tensor] : weights) {
    if (name == "transformer.h.1.mlp.c_fc.weight") EXPECT_THAT(tensor.sizes(), ElementsAre(128, 512));
  }
  std::ifstream config(folder.path() / "saved/config.json");
  const Json json = Json::parse(std::string(std::istreambuf_iterator<char>(config), {}));
  EXPECT_EQ(json.at("n_layer"), Json(2));
  EXPECT_EQ(json.at("model_type"), Json("gpt2"));

  EXPECT_EQ(models::GptOptions::of_weights(weights).heads, 2);
  const auto expect_same = [&](const std::filesystem::path& path) {
    const Model other = small_gpt(/*seed=*/4);
    models::load_gpt(other, path);
    const auto parameters = model.module()->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::equal(parameters[i], other.module()->parameters()[i])) << i;
    }
  };
  expect_same(file);
  // As in Hugging Face's own files: no prefix, the masks, and the head beside the embedding.
  for (auto& [name, tensor] : weights) name.erase(0, std::string("transformer.").size());
  weights.emplace_back("h.0.attn.bias", torch::ones({1, 1, 16, 16}));
  weights.emplace_back("lm_head.weight", weights.front().second.clone());
  for (const auto& [name, tensor] : weights) {
    if (name == "wte.weight") weights.back().second = tensor.clone();
  }
  save_weights(weights, folder.path() / "plain.safetensors");
  expect_same(folder.path() / "plain.safetensors");
  // The layout of Linear layers.
  save_weights(*model.module(), folder.path() / "linear.pt");
  expect_same(folder.path() / "linear.pt");
}

TEST(GptWeightsTest, OfAnotherModelAreRefused) {
  const test::TemporaryFolder folder;
  const Model model = small_gpt();
  NamedTensors weights = named_parameters(*model.module());
  const auto refusal = [&](const NamedTensors& changed) {
    save_weights(changed, folder.path() / "changed.safetensors");
    const at::Tensor before = model.module()->parameters().front().clone();
    std::string text = error_of([&] { models::load_gpt(model, folder.path() / "changed.safetensors"); });
    EXPECT_TRUE(torch::equal(before, model.module()->parameters().front()));
    return text;
  };
  NamedTensors fewer(weights.begin(), weights.end() - 1);
  EXPECT_THAT(refusal(fewer), HasSubstr("has no weight 'ln_f.bias'"));
  NamedTensors more = weights;
  more.emplace_back("lm_head.weight", torch::zeros({40, 128}));
  EXPECT_THAT(refusal(more), HasSubstr("has the weight 'lm_head.weight', which this model lacks"));
  NamedTensors other = weights;
  other[1].second = torch::zeros({17, 128});
  EXPECT_THAT(refusal(other), HasSubstr("'wpe.weight' is [17, 128]"));
  EXPECT_THAT(error_of([] {
                models::GptOptions::of_weights({{"0.weight", torch::zeros({2, 2})}});
              }),
              HasSubstr("'wte.weight' is missing"));
}

std::vector<int64_t> generated(const Model& model, const GenerateOptions& options,
                               std::vector<int64_t> prompt = {1, 2}) {
  std::vector<int64_t> tokens;
  generate_tokens(model, prompt, options, [&](int64_t token) { tokens.push_back(token); });
  return tokens;
}

TEST(GenerateTest, WithoutTemperatureTakesTheMostProbableTokens) {
  const Model model = small_gpt();
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> expected = {1, 2};
  for (int i = 0; i < 10; ++i) {
    const at::Tensor scores = model(torch::tensor(expected, at::kLong).unsqueeze(0));
    expected.push_back(scores[0][-1].argmax().item<int64_t>());
  }
  expected.erase(expected.begin(), expected.begin() + 2);
  EXPECT_EQ(generated(model, {.temperature = 0, .max_tokens = 10}), expected);
  EXPECT_EQ(generated(model, {.temperature = 1, .top_k = 1, .max_tokens = 10}), expected);
}

TEST(GenerateTest, DrawsByItsSeedAndItsLimits) {
  const Model model = small_gpt();
  const auto first = generated(model, {.seed = 1, .max_tokens = 12});
  EXPECT_EQ(generated(model, {.seed = 1, .max_tokens = 12}), first);
  EXPECT_NE(generated(model, {.seed = 2, .max_tokens = 12}), first);
  for (const int64_t token : generated(model, {.max_tokens = 60, .vocabulary = 7})) EXPECT_LT(token, 7);
  const auto stopped = generated(model, {.seed = 1, .max_tokens = 12, .stop = first[3]});
  const auto until = std::find(first.begin(), first.end(), first[3]);
  EXPECT_EQ(stopped, std::vector<int64_t>(first.begin(), until));
}

TEST(GenerateTest, GoesOnBehindTheContext) {
  const Model model = small_gpt();
  EXPECT_EQ(generated(model, {.max_tokens = 50}).size(), 50U);
  std::vector<int64_t> longer(40);
  std::iota(longer.begin(), longer.end(), 0);
  // Half of the context of a prompt that is too long.
  const std::vector<int64_t> end(longer.end() - 8, longer.end());
  EXPECT_EQ(generated(model, {.temperature = 0, .max_tokens = 3}, longer),
            generated(model, {.temperature = 0, .max_tokens = 3}, end));
}

TEST(GenerateTest, RefusesAPromptThatTheModelCannotRead) {
  const Model model = small_gpt();
  EXPECT_THAT(error_of([&] { generated(model, {}, {}); }), HasSubstr("the prompt has no token"));
  EXPECT_THAT(error_of([&] {
                generated(model, {}, {3, 40});
              }),
              HasSubstr("the token 40, and the model has 40"));
}

// --- data ---

class TokenDataTest : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::vector<int32_t>& header,
                              const std::vector<uint16_t>& tokens) const {
    const auto file = folder_.path() / name;
    std::ofstream stream(file, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(header.data()),
                 static_cast<std::streamsize>(header.size() * 4));
    stream.write(reinterpret_cast<const char*>(tokens.data()),
                 static_cast<std::streamsize>(tokens.size() * 2));
    return file;
  }

  static std::vector<int32_t> header(int32_t magic, int32_t version, int32_t tokens) {
    std::vector<int32_t> words(256, 0);
    words[0] = magic;
    words[1] = version;
    words[2] = tokens;
    return words;
  }

  static std::vector<int64_t> values(const at::Tensor& tensor) {
    const at::Tensor flat = tensor.flatten().contiguous();
    return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
  }

  const std::vector<uint16_t> tokens_ = {10, 11, 12, 13, 14, 15, 16, 65535};
  test::TemporaryFolder folder_;
};

TEST_F(TokenDataTest, ReadsFilesWithAndWithoutHeader) {
  for (const auto& file :
       {write("llmc.bin", header(20240520, 1, 8), tokens_), write("nano.bin", {}, tokens_)}) {
    const TokenWindows windows({open_token_file(file)}, 3, 65536);
    ASSERT_EQ(windows.size(), 2);
    const Batch batch = windows.get_batch(std::vector<int64_t>{1, 0}, SampleSeeds(0, 0));
    EXPECT_THAT(values(batch.data()), ElementsAre(13, 14, 15, 10, 11, 12));
    EXPECT_THAT(values(batch.target()), ElementsAre(14, 15, 16, 11, 12, 13));
  }
  const TokenWindows all({open_token_file(folder_.path() / "nano.bin")}, 7, 65536);
  EXPECT_THAT(values(all.get(0, 0)[1]), ElementsAre(11, 12, 13, 14, 15, 16, 65535));
}

TEST_F(TokenDataTest, RefusesFilesOfAnotherFormat) {
  const auto refusal = [](const std::filesystem::path& file) {
    return error_of([&] { open_token_file(file); });
  };
  EXPECT_THAT(refusal(write("short.bin", header(20240520, 1, 9), tokens_)),
              HasSubstr("the header says 9 tokens"));
  EXPECT_THAT(refusal(write("new.bin", header(20240520, 2, 8), tokens_)), HasSubstr("version 2"));
  EXPECT_THAT(refusal(write("wide.bin", header(20240801, 7, 8), tokens_)), HasSubstr("32 bits"));
  EXPECT_THAT(refusal(write("empty.bin", {}, {})), HasSubstr("has no tokens"));
  std::ofstream(folder_.path() / "odd.bin") << "abc";
  EXPECT_THAT(refusal(folder_.path() / "odd.bin"), HasSubstr("two bytes each, and the file has 3"));
  EXPECT_THAT(refusal(folder_.path() / "none.bin"), HasSubstr("cannot read"));
  EXPECT_THAT(refusal(folder_.path()), HasSubstr("cannot read"));
}

TEST_F(TokenDataTest, NamesATokenThatTheModelLacks) {
  const TokenWindows windows({open_token_file(write("data.bin", {}, tokens_))}, 7, 50304);
  EXPECT_THAT(error_of([&] { windows.get(0, 0); }), HasSubstr("has the token 65535 behind place 0"));
}

TEST_F(TokenDataTest, WindowsDoNotCrossFiles) {
  write("train_2.bin", {}, {21, 22, 23, 24, 25});
  write("train_1.bin", {}, {1, 2, 3, 4, 5, 6});
  write("my_val.bin", {}, {7, 8, 9});
  write("other.txt", {}, {7, 8, 9});
  const TokenSplit split = open_tokens(folder_.path(), 0.5);
  EXPECT_EQ(split.validation.size(), 1U);
  const TokenWindows windows(split.train, 2, 100);
  ASSERT_EQ(windows.size(), 4);
  EXPECT_THAT(values(windows.get(1, 0)[0]), ElementsAre(3, 4));
  EXPECT_THAT(values(windows.get(2, 0)[0]), ElementsAre(21, 22));
  EXPECT_THAT(values(windows.get(3, 0)[1]), ElementsAre(24, 25));
  const test::TemporaryFolder empty;
  EXPECT_THAT(error_of([&] { open_tokens(empty.path(), 1); }), HasSubstr("no file *.bin with 'train'"));
}

TEST_F(TokenDataTest, SplitsATextIntoTrainingAndValidation) {
  std::ofstream(folder_.path() / "book.txt", std::ios::binary) << "abcdefgh\xFFz";
  const TokenSplit split = read_text_tokens(folder_.path() / "book.txt", nullptr, 0.6);
  EXPECT_THAT(values(TokenWindows(split.train, 5, 256).get(0, 0)[1]), ElementsAre('b', 'c', 'd', 'e', 'f'));
  EXPECT_THAT(values(TokenWindows(split.validation, 3, 256).get(0, 0)[1]), ElementsAre('h', 0xFF, 'z'));
  EXPECT_TRUE(read_text_tokens(folder_.path() / "book.txt", nullptr, 1).validation.empty());
}

TEST_F(TokenDataTest, SyntheticTokensCanBeLearned) {
  const at::Tensor tokens = synthetic_tokens(40, 1).train.front().tokens;
  EXPECT_LT(tokens.max().item<int64_t>(), 40);
  // Each token has at most four successors.
  const at::Tensor pairs = tokens.slice(0, 0, -1).to(at::kLong) * 40 + tokens.slice(0, 1).to(at::kLong);
  EXPECT_LE(std::get<0>(at::_unique2(pairs)).numel(), 40 * 4);
}

}  // namespace
}  // namespace lockstep::recipes
