#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/exported_model.h>
#include <lockstep/model.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <sstream>

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
  ExportedModel model(test::exported_file("net"));
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
  ExportedModel exported(test::exported_file("net"));
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
  ExportedModel model(test::exported_file("pair"));
  EXPECT_THAT(model->input_names(), ElementsAre("x", "extra.0", "weight"));
  EXPECT_THAT(model->output_names(), ElementsAre("sum", "more.0", "more.1", "rows"));
  EXPECT_THAT(names_in(model->named_parameters()), ElementsAre("encode.weight"));  // tied to decode.weight
  EXPECT_THAT(names_in(model->named_buffers()), ElementsAre("calls", "scale"));
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
  ExportedModel model(test::exported_file("net"));
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
  ExportedModel pair(test::exported_file("pair"));
  EXPECT_THAT(
      [&] {
        pair->run({torch::ones({5, 3}), torch::ones({8}), torch::ones({})});
      },
      ThrowsMessage<ConfigError>(HasSubstr("'extra.0' has size 8 in dimension 0, and the sizes of the "
                                           "other inputs require 10")));
}

TEST(ExportedModelTest, FollowsItsParametersToAnotherDtype) {
  ExportedModel model(test::exported_file("pair"));
  model->to(torch::kDouble);
  const auto outputs =
      model->run({test::formula({5, 3}, 0).to(torch::kDouble), torch::arange(10.), torch::tensor(0.5)});
  EXPECT_EQ(outputs[0].toTensor().scalar_type(), torch::kDouble);
}

// The first is from scale_by_keep=True of timm's DropPath, the second from False.
TEST(ExportedModelTest, StochasticDepthKeepsEverySampleInEvaluation) {
  ExportedModel model(test::exported_file("paths"));
  const at::Tensor x = test::formula({16, 3}, 1);
  model->eval();
  for (const c10::IValue& output : model->run({x})) EXPECT_TRUE(torch::equal(output.toTensor(), x));
  model->train();
  torch::manual_seed(0);
  const auto outputs = model->run({x});
  EXPECT_FALSE(torch::equal(outputs[0].toTensor(), x));
  EXPECT_FALSE(torch::equal(outputs[1].toTensor(), x));
}

TEST(ExportedModelTest, KeepsTheDtypesOfTheFileUntilItIsConverted) {
  ExportedModel model(test::exported_file("mixed"));
  const at::Tensor x = test::formula({5, 3}, 1);
  const at::Tensor grid = torch::arange(4, torch::kDouble) / 3;
  const at::Tensor weights = torch::arange(4, torch::kDouble) / 7;
  const auto outputs = model->run({x});
  EXPECT_TRUE(torch::equal(outputs[1].toTensor(), grid + weights));
  EXPECT_EQ(outputs[2].toTensor().scalar_type(), torch::kFloat);
  model->to(torch::kBFloat16);
  const auto converted = model->run({x.to(torch::kBFloat16)});
  // Constants stay as they are, buffers do not, as in Python.
  EXPECT_TRUE(torch::equal(converted[1].toTensor(), grid.to(torch::kBFloat16) + weights));
  EXPECT_EQ(converted[2].toTensor().scalar_type(), torch::kBFloat16);
  const auto copy = std::dynamic_pointer_cast<ExportedModelImpl>(model->clone());
  EXPECT_EQ(copy->run({x.to(torch::kBFloat16)})[2].toTensor().scalar_type(), torch::kBFloat16);
}

TEST(ExportedModelTest, ABatchNormWithoutStatisticsUsesThoseOfTheBatchInEvaluation) {
  ExportedModel model(test::exported_file("mixed"));
  const at::Tensor x = test::formula({5, 3}, 1);
  const at::Tensor trained = model->run({x})[0].toTensor();
  model->eval();
  EXPECT_TRUE(torch::equal(model->run({x})[0].toTensor(), trained));
}

TEST(ExportedModelTest, RunsWithComplexParametersAlone) {
  ExportedModel model(test::exported_file("waves"));
  const at::Tensor x = torch::tensor({1.F, 2.F});
  const at::Tensor expected = torch::tensor({0.5F, 4.F}) * torch::tensor({2.F, 5.F}).sqrt();
  EXPECT_TRUE(torch::allclose(model->forward(x), expected));
}

TEST(ExportedModelTest, ChangesOfBuffersAndInputsMayBeResultsOfTheProgram) {
  ExportedModel model(test::exported_file("functional"));
  torch::nn::Linear linear(3, 4);
  torch::nn::BatchNorm1d norm(4);
  {
    const torch::NoGradGuard guard;
    for (at::Tensor& tensor : linear->parameters()) tensor.copy_(eighths(tensor.sizes()));
    for (at::Tensor& tensor : norm->parameters()) tensor.copy_(eighths(tensor.sizes()));
  }
  const at::Tensor total = torch::zeros({3});
  at::Tensor expected_total = torch::zeros({3});
  for (int step = 1; step <= 2; ++step) {
    const at::Tensor x = test::formula({6, 3}, step);
    const at::Tensor output = model->run(std::vector<c10::IValue>{x, total})[0].toTensor();
    const at::Tensor expected = norm(linear(x)) * step;
    EXPECT_TRUE(torch::allclose(output, expected));
    output.square().sum().backward();
    expected.square().sum().backward();
    expected_total += x.sum(0);
  }
  EXPECT_TRUE(torch::allclose(total, expected_total));
  EXPECT_TRUE(torch::allclose(model->parameters()[0].grad(), linear->weight.grad(), 1e-4, 1e-5));
  const auto buffers = model->named_buffers();
  EXPECT_TRUE(torch::equal(buffers["seen"], torch::full({3}, 2.F)));
  EXPECT_TRUE(torch::allclose(buffers["norm.running_mean"], norm->running_mean));
  EXPECT_TRUE(torch::allclose(buffers["norm.running_var"], norm->running_var));
  EXPECT_EQ(buffers["norm.num_batches_tracked"].item<int64_t>(), 2);
  model->eval();
  norm->eval();
  const at::Tensor x = test::formula({6, 3}, 3);
  EXPECT_TRUE(
      torch::allclose(model->run(std::vector<c10::IValue>{x, total})[0].toTensor(), norm(linear(x)) * 3));
  EXPECT_TRUE(torch::allclose(buffers["norm.running_mean"], norm->running_mean));
  EXPECT_EQ(buffers["norm.num_batches_tracked"].item<int64_t>(), 2);
}

TEST(ExportedModelTest, ComputesWithNumbers) {
  ExportedModel model(test::exported_file("numbers"));
  const at::Tensor x = test::formula({5, 3}, 1);
  const at::Tensor rows = torch::linear(x, eighths({1, 3}), eighths({1}));
  for (const int64_t repeats : {3, 2}) {
    const auto outputs = model->run({x, repeats, torch::tensor(0.25F)});
    const double mean = static_cast<double>(repeats) / 2;
    EXPECT_TRUE(torch::equal(outputs[0].toTensor(), rows.repeat({repeats, 1}) * mean + 0.25));
    EXPECT_EQ(outputs[1].toInt(), 2 * repeats);
    EXPECT_EQ(outputs[2].toDouble(), 0.25);
  }
  EXPECT_THAT(
      [&] {
        model->run({x, 1.5, torch::tensor(0.25F)});
      },
      ThrowsMessage<ConfigError>(HasSubstr("input 'repeats' must be an integer")));
}

TEST(ExportedModelTest, TakesConstantsOfTheExportOrNone) {
  ExportedModel model(test::exported_file("fixed"));
  EXPECT_THAT(model->input_names(), ElementsAre("mask"));
  EXPECT_THAT(model->input_dtypes(), ElementsAre(at::kBool));
  const at::Tensor mask = torch::tensor({{true, false, true}, {false, true, true}});
  const at::Tensor rows =
      (torch::linear(mask.to(at::kFloat), eighths({2, 3}), eighths({2})) * 0.5).tanh().repeat({2, 1});
  EXPECT_TRUE(torch::equal(model->forward(mask), rows));
  std::map<std::string, c10::IValue> inputs = {{"mask", mask},  {"squash", true}, {"scale", 0.5},
                                               {"repeats", 2.}, {"extra", {}},    {"mode", "repeat"}};
  EXPECT_TRUE(torch::equal(model->run(inputs).at("").toTensor(), rows));
  const auto refused = [&](const std::string& name, const c10::IValue& value, const std::string& constant) {
    auto other = inputs;
    other[name] = value;
    EXPECT_THAT(
        [&] { model->run(other); },
        ThrowsMessage<ConfigError>(HasSubstr("input '" + name + "' must be " + constant +
                                             " or left out: the model was exported for this value alone")));
  };
  refused("squash", false, "True");
  refused("squash", 1, "True");
  refused("scale", 0.25, "0.5");
  refused("repeats", 3, "2");
  refused("mode", "once", "'repeat'");
  refused("extra", mask, "None");
  EXPECT_THAT(
      [&] {
        model->run({mask, true, 0.5});
      },
      ThrowsMessage<ConfigError>(HasSubstr(
          "the model takes 1 inputs (mask), got 3; its export fixed squash = True, scale = 0.5, repeats = 2, "
          "mode = 'repeat', extra = None")));
}

TEST(ExportedModelTest, RunsFilesOfOlderPyTorch) {
  const at::Tensor x = test::formula({7, 3}, 1);
  for (const char* name : {"net_2_11", "net_2_12", "net_2_13", "net_2_14"}) {
    ExportedModel model(test::exported_file("net"));
    ExportedModel old(test::exported_file(name));
    for (const bool training : {true, false}) {
      old->train(training);
      model->train(training);
      torch::manual_seed(3);
      const at::Tensor expected = model->forward(x);
      torch::manual_seed(3);
      EXPECT_TRUE(torch::equal(old->forward(x), expected)) << name;
    }
  }
}

TEST(ExportedModelTest, LibTorchSavesAndLoadsIt) {
  ExportedModel model(test::exported_file("pair"));
  {
    const torch::NoGradGuard guard;
    model->parameters()[0].fill_(3);
    model->buffers()[1].fill_(5);
  }
  std::stringstream file;
  torch::save(model, file);
  ExportedModel loaded(test::exported_file("pair"));
  torch::load(loaded, file);
  const std::vector<c10::IValue> inputs = {test::formula({5, 3}, 0), torch::arange(10.), torch::tensor(0.5F)};
  EXPECT_TRUE(torch::equal(loaded->run(inputs)[0].toTensor(), model->run(inputs)[0].toTensor()));
  EXPECT_TRUE(torch::equal(loaded->named_buffers()["scale"], torch::full({1}, 5.F)));
}

TEST(ExportedModelTest, NonPersistentBuffersAreInNoStateDict) {
  const test::TemporaryFolder folder;
  ExportedModel model(test::exported_file("pair"));
  EXPECT_THAT(model->non_persistent_buffers(), ElementsAre("scale"));
  // Also where the model is a part of another.
  const torch::nn::Sequential whole(model);
  for (const auto& [module, prefix] : std::vector<std::pair<std::shared_ptr<torch::nn::Module>, std::string>>{
           {model.ptr(), ""}, {whole.ptr(), "0."}}) {
    const std::filesystem::path file = folder.path() / ("state" + prefix + "pt");
    save_weights(*module, file);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : checkpoint::read_weights(file)) names.push_back(name);
    EXPECT_THAT(names, testing::UnorderedElementsAre(prefix + "calls", prefix + "encode.weight"));
    EXPECT_TRUE(load_weights(*module, file).missing.empty());
  }
}

TEST(ExportedModelTest, NamesTheOperatorThatFailedOnce) {
  ExportedModel model(test::exported_file("pair"));
  model->parameters()[0].set_data(torch::ones({2, 2}));
  std::string message;
  try {
    model->run({test::formula({5, 3}, 0), torch::arange(10.), torch::tensor(0.5F)});
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  }
  EXPECT_THAT(message, HasSubstr("in torch.ops.aten.linear.default at make_golden.py:"));
  EXPECT_THAT(message, testing::Not(HasSubstr("wrap_with")));
}

TEST(ExportedModelTest, WarnsOfAnOperatorThroughWhichNoGradientsPass) {
  testing::internal::CaptureStderr();
  ExportedModel model(test::exported_file("copies"));
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("cannot be trained through the operator torch.ops.aten.copy.default at make_golden.py:"));
}

TEST(ExportedModelTest, ACloneHasWeightsOfItsOwn) {
  ExportedModel model(test::exported_file("net"));
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
  ExportedModel model(test::exported_file("pair"));
  model->save_state_dict(folder.path() / "state.pt");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint::read_weights(folder.path() / "state.pt"))
    names.push_back(name);
  EXPECT_THAT(names, ElementsAre("calls", "encode.weight", "decode.weight"));
}

TEST(ExportedModelTest, WarnsOfAnEvaluatedExportAndOfRandomNumbers) {
  testing::internal::CaptureStderr();
  ExportedModel evaluated(test::exported_file("evaluated"));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("was exported in evaluation mode"));
  testing::internal::CaptureStderr();
  ExportedModel random(test::exported_file("random"));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("torch.ops.aten.rand_like.default at make_golden.py:"));
  testing::internal::CaptureStderr();
  ExportedModel net(test::exported_file("net"));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(ExportedModelTest, RefusesAHigherOrderOperatorWithItsLineOfPython) {
  EXPECT_THAT([] { ExportedModel model(test::exported_file("conditional")); },
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
  std::filesystem::copy_file(test::exported_file("net"), cut);
  std::filesystem::resize_file(cut, std::filesystem::file_size(cut) / 2);
  EXPECT_THAT([&] { ExportedModel model(cut); },
              ThrowsMessage<ConfigError>(
                  EndsWith("cut.pt2': it is not a complete zip archive: save or copy it again")));
}

}  // namespace
}  // namespace lockstep
