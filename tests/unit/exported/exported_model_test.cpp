#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/exported_model.h>
#include <lockstep/model.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include "checkpoint/weights.h"
#include "support/formula.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::ThrowsMessage;

// A file that golden/make_golden.py wrote.
std::string exported_file(const std::string& name) {
  return test::data_path("unit/exported/golden/" + name + ".pt2");
}

at::Tensor eighths(at::IntArrayRef shape) {
  return (torch::arange(c10::multiply_integers(shape)) / 8).reshape(shape);
}

// Net of make_golden.py in C++.
struct TwinImpl : torch::nn::Module {
  TwinImpl()
      : layers(register_module(
            "layers",
            torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
                                  torch::nn::ReLU(torch::nn::ReLUOptions(true)), torch::nn::Dropout(0.5)))),
        head(register_module("head", torch::nn::Linear(4, 2))) {
    const torch::NoGradGuard guard;
    for (at::Tensor& tensor : parameters()) tensor.copy_(eighths(tensor.sizes()));
  }
  at::Tensor forward(const at::Tensor& x) { return head(layers->forward(x)); }

  torch::nn::Sequential layers;
  torch::nn::Linear head;
};
TORCH_MODULE(Twin);

std::vector<std::string> names_in(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  return tensors.keys();
}

TEST(ExportedModelTest, HasTheNamesOfPython) {
  ExportedModel model(exported_file("net"));
  EXPECT_THAT(names_in(model->named_parameters()),
              ElementsAre("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
                          "head.weight", "head.bias"));
  EXPECT_THAT(names_in(model->named_buffers()),
              ElementsAre("layers.1.running_mean", "layers.1.running_var", "layers.1.num_batches_tracked"));
  EXPECT_TRUE(model->parameters()[0].requires_grad());
  EXPECT_THAT(model->input_names(), ElementsAre("x"));
  EXPECT_THAT(model->output_names(), ElementsAre(""));
}

TEST(ExportedModelTest, TrainsAndEvaluatesWithTheBitsOfTheSameModule) {
  ExportedModel exported(exported_file("net"));
  Twin twin;
  torch::optim::SGD exported_optimizer(exported->parameters(), 0.01);
  torch::optim::SGD twin_optimizer(twin->parameters(), 0.01);
  const Model model = exported;  // as the trainer takes it
  for (int step = 0; step < 4; ++step) {
    const at::Tensor input = test::formula({8 - step, 3}, step);
    exported_optimizer.zero_grad();
    twin_optimizer.zero_grad();
    torch::manual_seed(step);
    model(input).square().mean().backward();
    torch::manual_seed(step);
    twin->forward(input).square().mean().backward();
    exported_optimizer.step();
    twin_optimizer.step();
  }
  exported->eval();
  twin->eval();
  const at::Tensor input = test::formula({5, 3}, 9);
  EXPECT_TRUE(torch::equal(model(input), twin->forward(input)));
  exported->train();
  twin->train();
  torch::manual_seed(1);
  const at::Tensor trained = model(input);
  torch::manual_seed(1);
  EXPECT_TRUE(torch::equal(trained, twin->forward(input)));
  const auto expected = twin->named_parameters();
  for (const auto& item : exported->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), expected[item.key()])) << item.key();
  }
  const auto buffers = twin->named_buffers();
  for (const auto& item : exported->named_buffers()) {
    EXPECT_TRUE(torch::equal(item.value(), buffers[item.key()])) << item.key();
  }
}

TEST(ExportedModelTest, TakesInputsAndGivesOutputsByName) {
  ExportedModel model(exported_file("pair"));
  EXPECT_THAT(model->input_names(), ElementsAre("x", "extra.0", "weight"));
  EXPECT_THAT(model->output_names(), ElementsAre("sum", "more.0", "more.1", "rows"));
  EXPECT_THAT(names_in(model->named_parameters()), ElementsAre("encode.weight"));  // tied to decode.weight
  EXPECT_THAT(names_in(model->named_buffers()), ElementsAre("calls"));
  const at::Tensor x = test::formula({5, 3}, 0);
  const at::Tensor extra = torch::arange(10.);
  const std::map<std::string, c10::IValue> inputs = {
      {"x", x}, {"extra.0", extra}, {"weight", torch::tensor(0.5F)}};
  const auto outputs = model->run(inputs);
  const at::Tensor weight = eighths({3, 3});
  const at::Tensor hidden = x.matmul(weight.t()).matmul(weight.t()) * 2 + 1;
  EXPECT_TRUE(torch::allclose(outputs.at("sum").toTensor(), hidden.sum() * 0.5 + extra.sum()));
  EXPECT_FALSE(outputs.at("more.0").toTensor().requires_grad());
  EXPECT_EQ(outputs.at("more.1").toTensor().scalar_type(), torch::kBFloat16);
  EXPECT_EQ(outputs.at("rows").toInt(), 10);
  model->run(inputs);
  EXPECT_EQ(model->named_buffers()["calls"].item<int64_t>(), 2);
  EXPECT_THAT([&] { model->forward(x); },
              ThrowsMessage<ConfigError>(HasSubstr("3 inputs (x, extra.0, weight)")));
  EXPECT_THAT(
      [&] {
        model->run({{"x", x}, {"extra.0", extra}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("needs the input 'weight'")));
  auto more = inputs;
  more.emplace("y", x);
  EXPECT_THAT([&] { model->run(more); }, ThrowsMessage<ConfigError>(HasSubstr("no input 'y'")));
}

TEST(ExportedModelTest, RefusesInputsThatItWasNotExportedFor) {
  ExportedModel model(exported_file("net"));
  EXPECT_NO_THROW(model->forward(torch::ones({64, 3})));
  EXPECT_THAT(
      [&] {
        model->forward(torch::ones({65, 3}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("input 'x' has size 65 in dimension 0, and the model was "
                                           "exported for 1 to 64")));
  EXPECT_THAT(
      [&] {
        model->forward(torch::ones({4, 5}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("has size 5 in dimension 1, and the model was exported for 3")));
  EXPECT_THAT([&] { model->forward(torch::ones({4})); },
              ThrowsMessage<ConfigError>(HasSubstr("2 dimensions")));
  EXPECT_THAT(
      [&] {
        model->forward(torch::ones({4, 3}, torch::kLong));
      },
      ThrowsMessage<ConfigError>(HasSubstr("dtype Long, and the model was exported for Float")));
  ExportedModel pair(exported_file("pair"));
  EXPECT_THAT(
      [&] {
        pair->run({torch::ones({5, 3}), torch::ones({8}), torch::ones({})});
      },
      ThrowsMessage<ConfigError>(HasSubstr("'extra.0' has size 8 in dimension 0, and the sizes of the "
                                           "other inputs require 10")));
}

TEST(ExportedModelTest, FollowsItsParametersToAnotherDtype) {
  ExportedModel model(exported_file("pair"));
  model->to(torch::kDouble);
  const auto outputs =
      model->run({test::formula({5, 3}, 0).to(torch::kDouble), torch::arange(10.), torch::tensor(0.5)});
  EXPECT_EQ(outputs[0].toTensor().scalar_type(), torch::kDouble);
}

TEST(ExportedModelTest, ACloneHasWeightsOfItsOwn) {
  ExportedModel model(exported_file("net"));
  model->eval();
  const auto copy = std::dynamic_pointer_cast<ExportedModelImpl>(model->clone());
  ASSERT_NE(copy, nullptr);
  const at::Tensor x = test::formula({4, 3}, 2);
  const at::Tensor before = model->forward(x);
  {
    const torch::NoGradGuard guard;
    for (at::Tensor& parameter : copy->parameters()) parameter.zero_();
  }
  EXPECT_TRUE(torch::equal(model->forward(x), before));
  EXPECT_TRUE(torch::equal(copy->forward(x), torch::zeros_like(before)));
  EXPECT_TRUE(copy->parameters()[0].requires_grad());
}

TEST(ExportedModelTest, SavesAStateDictWithTheNamesAndTheOrderOfPython) {
  const test::TemporaryFolder folder;
  ExportedModel model(exported_file("pair"));
  model->save_state_dict(folder.path() / "state.pt");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint::read_weights(folder.path() / "state.pt"))
    names.push_back(name);
  EXPECT_THAT(names, ElementsAre("calls", "encode.weight", "decode.weight"));
}

TEST(ExportedModelTest, WarnsOfAnEvaluatedExportAndOfRandomNumbers) {
  testing::internal::CaptureStderr();
  ExportedModel evaluated(exported_file("evaluated"));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("was exported in evaluation mode"));
  testing::internal::CaptureStderr();
  ExportedModel random(exported_file("random"));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("torch.ops.aten.rand_like.default at make_golden.py:"));
  testing::internal::CaptureStderr();
  ExportedModel net(exported_file("net"));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(ExportedModelTest, RefusesAHigherOrderOperatorWithItsLineOfPython) {
  EXPECT_THAT([] { ExportedModel model(exported_file("conditional")); },
              ThrowsMessage<ConfigError>(HasSubstr(
                  "torch.ops.higher_order.cond at make_golden.py:53: it is a higher-order operator")));
}

TEST(ExportedModelTest, RefusesOtherFiles) {
  EXPECT_THAT([] { ExportedModel model(test::data_path("unit/checkpoint/golden/script.pt")); },
              ThrowsMessage<ConfigError>(HasSubstr("a file of torch.save or torch.jit.save")));
  EXPECT_THAT([] { ExportedModel model(test::data_path("unit/checkpoint/golden/legacy.pt")); },
              ThrowsMessage<ConfigError>(HasSubstr("it is no zip archive")));
  EXPECT_THAT([] { ExportedModel model("missing.pt2"); },
              ThrowsMessage<ConfigError>(HasSubstr("cannot read")));
  const test::TemporaryFolder folder;
  const std::filesystem::path cut = folder.path() / "cut.pt2";
  std::filesystem::copy_file(exported_file("net"), cut);
  std::filesystem::resize_file(cut, std::filesystem::file_size(cut) / 2);
  EXPECT_THAT([&] { ExportedModel model(cut); },
              ThrowsMessage<ConfigError>(
                  EndsWith("cut.pt2': it is not a complete zip archive: save or copy it again")));
}

}  // namespace
}  // namespace lockstep
