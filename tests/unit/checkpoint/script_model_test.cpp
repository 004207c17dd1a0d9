#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/model.h>
#include <lockstep/script_model.h>
#include <torch/torch.h>

#include "support/formula.h"
#include "support/temporary_folder.h"
#include "unit/checkpoint/golden_files.h"

namespace lockstep {
namespace {

using test::golden;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// What golden/make_golden.py scripted, in C++.
torch::nn::Sequential scripted_network() {
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
  const torch::NoGradGuard guard;
  for (auto& tensor : model->parameters())
    tensor.copy_(torch::arange(tensor.numel()).reshape(tensor.sizes()));
  for (auto& tensor : model->buffers()) tensor.copy_(torch::arange(tensor.numel()).reshape(tensor.sizes()));
  return model;
}

std::vector<std::string> keys(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  return tensors.keys();
}

TEST(ScriptModelTest, HasTheNamesOfPython) {
  ScriptModel model(golden("script.pt"));
  EXPECT_THAT(keys(model->named_parameters()),
              ElementsAre("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"));
  EXPECT_THAT(keys(model->named_buffers()),
              ElementsAre("1.running_mean", "1.running_var", "1.num_batches_tracked"));
  for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.requires_grad());
}

TEST(ScriptModelTest, TrainsLikeTheSameModuleInCpp) {
  ScriptModel script(golden("script.pt"));
  torch::nn::Sequential twin = scripted_network();
  torch::optim::SGD script_optimizer(script->parameters(), 0.01);
  torch::optim::SGD twin_optimizer(twin->parameters(), 0.01);
  const Model model = script;  // as the trainer takes it
  for (int step = 0; step < 3; ++step) {
    const at::Tensor input = test::formula({8, 3}, step);
    script_optimizer.zero_grad();
    twin_optimizer.zero_grad();
    model(input).square().mean().backward();
    twin->forward(input).square().mean().backward();
    script_optimizer.step();
    twin_optimizer.step();
  }
  const auto expected = twin->named_parameters();
  for (const auto& item : script->named_parameters()) {
    EXPECT_TRUE(torch::allclose(item.value(), expected[item.key()], 1e-5, 1e-6)) << item.key();
  }
  EXPECT_EQ(script->named_buffers()["1.num_batches_tracked"].item<int64_t>(), 3);
  EXPECT_TRUE(
      torch::allclose(script->named_buffers()["1.running_var"], twin->named_buffers()["1.running_var"]));
}

TEST(ScriptModelTest, EvaluationLeavesTheStatisticsAlone) {
  ScriptModel model(golden("script.pt"));
  EXPECT_TRUE(model->is_training());
  model->eval();
  EXPECT_FALSE(model->is_training());
  const at::Tensor input = test::formula({4, 3}, 1);
  const at::Tensor first = model->forward(input);
  EXPECT_EQ(model->named_buffers()["1.num_batches_tracked"].item<int64_t>(), 0);
  EXPECT_TRUE(first.equal(model->forward(input)));
  model->train();
  EXPECT_FALSE(first.equal(model->forward(input)));
  EXPECT_EQ(model->named_buffers()["1.num_batches_tracked"].item<int64_t>(), 1);
}

TEST(ScriptModelTest, ConvertingTheModuleConvertsTheScript) {
  ScriptModel model(golden("script.pt"));
  model->to(torch::kDouble);
  EXPECT_EQ(model->forward(test::formula({4, 3}, 1).to(torch::kDouble)).scalar_type(), torch::kDouble);
}

TEST(ScriptModelTest, TiedWeightsAreOneParameterAndReplacedBuffersStay) {
  ScriptModel model(golden("tied_script.pt"));
  EXPECT_THAT(keys(model->named_parameters()), ElementsAre("encoder.weight"));
  const at::Tensor calls = model->named_buffers()["calls"];
  model->forward(torch::ones({1, 2}));
  model->forward(torch::ones({1, 2}));
  EXPECT_EQ(calls.item<int64_t>(), 2) << "the registered tensor follows the script's";
  calls.fill_(7);
  model->forward(torch::ones({1, 2}));
  EXPECT_EQ(calls.item<int64_t>(), 8) << "and the script follows it";
}

TEST(ScriptModelTest, ACloneIsIndependent) {
  ScriptModel model(golden("script.pt"));
  const auto copy = std::dynamic_pointer_cast<ScriptModelImpl>(model->clone());
  const at::Tensor input = test::formula({4, 3}, 1);
  model->eval();
  copy->eval();
  EXPECT_TRUE(copy->forward(input).equal(model->forward(input)));
  torch::NoGradGuard guard;
  copy->parameters()[0].fill_(0);
  EXPECT_FALSE(copy->forward(input).equal(model->forward(input)));
}

TEST(ScriptModelTest, WhatIsSavedOpensAgain) {
  const test::TemporaryFolder folder;
  ScriptModel model(golden("script.pt"));
  {
    torch::NoGradGuard guard;
    for (auto& parameter : model->parameters()) parameter.add_(0.25);
  }
  model->eval();
  model->save_script(folder.path() / "trained.pt");
  ScriptModel again(folder.path() / "trained.pt");
  const at::Tensor input = test::formula({4, 3}, 1);
  EXPECT_FALSE(again->is_training());
  EXPECT_TRUE(again->forward(input).equal(model->forward(input)));
}

TEST(ScriptModelTest, WhatIsNoModelIsSaid) {
  EXPECT_THAT(
      [] { ScriptModel model(golden("network.pt")); },
      ThrowsMessage<ConfigError>(testing::AllOf(HasSubstr("network.pt"), HasSubstr("torch.jit.script"))));
  EXPECT_THAT([] { ScriptModel model(golden("absent.pt")); },
              ThrowsMessage<ConfigError>(HasSubstr("absent.pt")));
  EXPECT_THAT([] { ScriptModel(golden("two_outputs.pt"))->forward(torch::ones({1})); },
              ThrowsMessage<ConfigError>(HasSubstr("Tuple[Tensor, Tensor]")));
}

}  // namespace
}  // namespace lockstep
