#include <lockstep/models.h>

#include "checkpoint/torch_file.h"
#include "recipes/wide_resnet.h"
#include "support/config_error.h"
#include "support/temporary_folder.h"

namespace lockstep::models {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

int64_t parameter_count(const Model& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.module()->parameters()) count += parameter.numel();
  return count;
}

std::vector<std::string> parameter_names(const Model& model) {
  return model.module()->named_parameters().keys();
}
std::vector<std::string> buffer_names(const Model& model) { return model.module()->named_buffers().keys(); }

TEST(Models, HaveTheParametersOfTheirOriginals) {
  EXPECT_EQ(parameter_count(princeton_cnn()), 1'199'882);
  EXPECT_EQ(parameter_count(wide_resnet()), 17'175'444);
  EXPECT_EQ(parameter_count(vision_transformer()), 86'567'656);
  EXPECT_EQ(parameter_count(vision_transformer(VisionTransformerOptions::preset("tiny"))), 5'717'416);
  EXPECT_EQ(parameter_count(vision_transformer(VisionTransformerOptions::preset("small"))), 22'050'664);
  EXPECT_EQ(parameter_count(mlp({1, 16, 1})), 49);
}

TEST(PrincetonCnn, HasPrincetonsNames) {
  const Model model = princeton_cnn();
  EXPECT_THAT(parameter_names(model), ElementsAre("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                                                  "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"));
  EXPECT_THAT(buffer_names(model), testing::IsEmpty());
}

TEST(PrincetonCnn, GivesLogarithmsOfProbabilities) {
  const Model model = princeton_cnn();
  const at::Tensor output = model(torch::randn({3, 1, 28, 28}));
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{3, 10}));
  EXPECT_TRUE(torch::allclose(output.exp().sum(1), torch::ones({3})));
}

TEST(PrincetonCnn, DropsOutInTrainingOnly) {
  const Model model = princeton_cnn();
  const at::Tensor images = torch::randn({2, 1, 28, 28});
  EXPECT_FALSE(torch::equal(model(images), model(images)));
  model.module()->eval();
  EXPECT_TRUE(torch::equal(model(images), model(images)));
  const Model without = princeton_cnn({.conv_dropout = 0, .fc_dropout = 0});
  EXPECT_TRUE(torch::equal(without(images), without(images)));
}

TEST(WideResNet, HasSigma2sNames) {
  const Model model = wide_resnet({.widen_factor = 1});
  const auto names = parameter_names(model);
  ASSERT_GE(names.size(), 13);
  EXPECT_THAT(
      std::vector(names.begin(), names.begin() + 13),
      ElementsAre("input_block.cbr.0.weight", "input_block.cbr.1.weight", "input_block.cbr.1.bias",
                  "block1.layer1.cbr.0.weight", "block1.layer1.cbr.1.weight", "block1.layer1.cbr.1.bias",
                  "block1.layer2.cbr.0.weight", "block1.layer2.cbr.1.weight", "block1.layer2.cbr.1.bias",
                  "block2.layer1.cbr.0.weight", "block2.layer1.cbr.1.weight", "block2.layer1.cbr.1.bias",
                  "block2.layer2.cbr.0.weight"))
      << "at width 16 the first block needs no scale";
  const auto wide = parameter_names(wide_resnet({.widen_factor = 2}));
  EXPECT_THAT(std::vector(wide.begin() + 3, wide.begin() + 6),
              ElementsAre("block1.scale.weight", "block1.scale.bias", "block1.layer1.cbr.0.weight"));
  EXPECT_EQ(wide.back(), "fc.bias");
  const auto buffers = buffer_names(model);
  EXPECT_EQ(buffers.size(), 13 * 3);
  EXPECT_THAT(std::vector(buffers.begin(), buffers.begin() + 3),
              ElementsAre("input_block.cbr.1.running_mean", "input_block.cbr.1.running_var",
                          "input_block.cbr.1.num_batches_tracked"));
}

TEST(WideResNet, TakesImagesFrom28To55Pixels) {
  const Model model = wide_resnet({.classes = 7, .channels = 1, .widen_factor = 1});
  for (const int64_t size : {28, 32, 55}) {
    EXPECT_EQ(model(torch::randn({2, 1, size, size})).sizes(), (std::vector<int64_t>{2, 7}));
  }
}

TEST(WideResNet, ChannelsLastStaysSo) {
  for (const bool training : {true, false}) {
    ResidualBlock block(8, 16, 0.5);
    block.train(training);
    for (at::Tensor parameter : block.parameters()) {
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
    const at::Tensor input = torch::randn({2, 8, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor output = block.forward(input.set_requires_grad(true));
    EXPECT_TRUE(output.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(torch::max_pool2d(output, 2).is_contiguous(at::MemoryFormat::ChannelsLast));
    output.sum().backward();
    EXPECT_TRUE(input.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
  }
}

TEST(VisionTransformer, HasTorchvisionsNames) {
  const Model model = vision_transformer({.image_size = 8,
                                          .patch_size = 4,
                                          .layers = 1,
                                          .heads = 2,
                                          .hidden_size = 8,
                                          .mlp_size = 16,
                                          .classes = 3});
  const std::string block = "encoder.layers.encoder_layer_0.";
  EXPECT_THAT(
      parameter_names(model),
      ElementsAre("class_token", "conv_proj.weight", "conv_proj.bias", "encoder.pos_embedding",
                  block + "ln_1.weight", block + "ln_1.bias", block + "self_attention.in_proj_weight",
                  block + "self_attention.in_proj_bias", block + "self_attention.out_proj.weight",
                  block + "self_attention.out_proj.bias", block + "ln_2.weight", block + "ln_2.bias",
                  block + "mlp.0.weight", block + "mlp.0.bias", block + "mlp.3.weight", block + "mlp.3.bias",
                  "encoder.ln.weight", "encoder.ln.bias", "heads.head.weight", "heads.head.bias"));
  EXPECT_EQ(model(torch::randn({5, 3, 8, 8})).sizes(), (std::vector<int64_t>{5, 3}));
}

TEST(VisionTransformer, TakesThePublishedNames) {
  const VisionTransformerOptions options{.image_size = 8,
                                         .patch_size = 4,
                                         .layers = 2,
                                         .heads = 2,
                                         .hidden_size = 8,
                                         .mlp_size = 16,
                                         .classes = 3};
  const Model from = vision_transformer(options);
  NamedTensors published;
  for (const auto& item : from.module()->named_parameters()) {
    std::string name = item.key();
    for (const auto& [part, old_part] : {std::pair("mlp.0", "mlp.linear_1"), {"mlp.3", "mlp.linear_2"}}) {
      if (name.find(part) != std::string::npos) name.replace(name.find(part), 5, old_part);
    }
    published.emplace_back(name, item.value().detach());
  }
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "published.pt";
  checkpoint::write_torch_file(file, published);
  const Model to = vision_transformer(options);
  EXPECT_THAT(error_of([&] { load_weights(*to.module(), file); }), HasSubstr("mlp.linear_1.weight"));
  load_vision_transformer(to, file);
  for (size_t i = 0; i < published.size(); ++i) {
    EXPECT_TRUE(torch::equal(to.module()->parameters()[i], published[i].second)) << published[i].first;
  }
}

TEST(Mlp, IsASequentialWithActivationsBetween) {
  const Model model = mlp({2, 5, 4, 3}, Activation::kTanh);
  EXPECT_THAT(parameter_names(model),
              ElementsAre("0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"));
  EXPECT_EQ(model(torch::randn({6, 2})).sizes(), (std::vector<int64_t>{6, 3}));
}

TEST(Models, NameBothNumbersOfAnInputThatDoesNotFit) {
  const Model cnn = princeton_cnn();
  EXPECT_THAT(error_of([&] { cnn(torch::zeros({2, 3, 28, 28})); }), HasSubstr("1 channels: got 3"));
  EXPECT_THAT(error_of([&] { cnn(torch::zeros({2, 1, 32, 28})); }), HasSubstr("28 x 28 pixels: got 32 x 28"));
  EXPECT_THAT(error_of([&] {
                cnn(torch::zeros({28, 28}));
              }),
              HasSubstr("as [N, 1, height, width]: got [28, 28]"));
  const Model resnet = wide_resnet({.widen_factor = 1});
  EXPECT_THAT(error_of([&] { resnet(torch::zeros({2, 1, 32, 32})); }), HasSubstr("3 channels: got 1"));
  EXPECT_THAT(error_of([&] {
                resnet(torch::zeros({2, 3, 27, 32}));
              }),
              HasSubstr("28 x 28 to 55 x 55 pixels: got 27 x 32"));
  const Model vit = vision_transformer({.image_size = 8,
                                        .patch_size = 4,
                                        .layers = 1,
                                        .heads = 1,
                                        .hidden_size = 4,
                                        .mlp_size = 4,
                                        .classes = 2});
  EXPECT_THAT(error_of([&] { vit(torch::zeros({2, 3, 16, 16})); }), HasSubstr("8 x 8 pixels: got 16 x 16"));
}

TEST(Models, NameTheOptionThatMakesNoSense) {
  EXPECT_THAT(error_of([] { vision_transformer({.image_size = 30, .patch_size = 16}); }),
              HasSubstr("multiple of the patch size: 30 and 16"));
  EXPECT_THAT(error_of([] { vision_transformer({.heads = 5}); }), HasSubstr("number of heads: 768 and 5"));
  EXPECT_THAT(error_of([] { vision_transformer({.classes = 0}); }),
              HasSubstr("'classes' of the vision transformer"));
  EXPECT_THAT(error_of([] { VisionTransformerOptions::preset("huge"); }), HasSubstr("'huge'"));
  EXPECT_THAT(error_of([] { wide_resnet({.widen_factor = 0}); }),
              HasSubstr("'widen_factor' of the Wide ResNet"));
  EXPECT_THAT(error_of([] { wide_resnet({.dropout = 1.5}); }), HasSubstr("between 0 and 1: 1.5"));
  EXPECT_THAT(error_of([] { princeton_cnn({.conv_dropout = -1}); }), HasSubstr("'conv_dropout'"));
  EXPECT_THAT(error_of([] { mlp({4}); }), HasSubstr("1 given: [4]"));
  EXPECT_THAT(error_of([] { mlp({4, 0, 1}); }), HasSubstr("at least 1: 0"));
}

}  // namespace
}  // namespace lockstep::models
