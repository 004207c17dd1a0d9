#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "checkpoint/compare_weights.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"
#include "checkpoint/torch_file.h"
#include "checkpoint/weights.h"
#include "support/formula.h"
#include "support/temporary_folder.h"
#include "unit/checkpoint/golden_files.h"

namespace lockstep {
namespace {

using test::golden;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

// The network of golden/make_golden.py with other weights.
torch::nn::Sequential network(int64_t outputs = 2) {
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
                              torch::nn::Linear(4, outputs));
  test::set_parameters(*model);
  return model;
}

bool counts_up(const torch::nn::Module& module) {
  for (const auto& [name, tensor] : checkpoint::weights_of(module)) {
    if (!tensor.equal(torch::arange(tensor.numel()).reshape(tensor.sizes()).to(tensor.scalar_type())))
      return false;
  }
  return true;
}

bool equal(const torch::nn::Module& a, const torch::nn::Module& b) {
  const checkpoint::WeightMatch match =
      checkpoint::match_weights(checkpoint::weights_of(a), checkpoint::weights_of(b));
  return match.differences().empty() &&
         std::all_of(match.pairs.begin(), match.pairs.end(),
                     [](const auto& pair) { return test::same_bits(pair.to, pair.from); });
}

class LoadWeightsTest : public testing::TestWithParam<std::string> {};

TEST_P(LoadWeightsTest, FitTheSameNetwork) {
  auto model = network();
  const LoadedWeights loaded = load_weights(*model, golden(GetParam()));
  EXPECT_TRUE(counts_up(*model));
  EXPECT_THAT(loaded.missing, IsEmpty());
  EXPECT_THAT(loaded.unexpected, IsEmpty());
  EXPECT_THAT(loaded.converted, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Files, LoadWeightsTest,
                         testing::Values("network.pt", "wrapped.pt", "training.pt", "legacy.pt", "script.pt"),
                         [](const auto& info) { return info.param.substr(0, info.param.size() - 3); });

// A module as DistributedDataParallel wraps it.
struct WrapperImpl : torch::nn::Module {
  explicit WrapperImpl(const std::shared_ptr<torch::nn::Module>& inner) { register_module("module", inner); }
};

TEST(WeightsTest, AWrappedModelTakesPlainWeights) {
  auto model = network();
  WrapperImpl wrapper(model.ptr());
  load_weights(wrapper, golden("network.pt"));
  EXPECT_TRUE(counts_up(*model));
  load_weights(wrapper, golden("wrapped.pt"));
}

TEST(WeightsTest, AWrongModelIsRefusedWithEveryNameAndKeepsItsWeights) {
  torch::nn::Sequential model(torch::nn::Linear(3, 5), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2),
                              torch::nn::Linear(2, 2));
  model->ptr(2)->to(torch::kDouble);
  test::set_parameters(*model);
  const auto before =
      checkpoint::weights_of(*std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
  EXPECT_THAT(
      [&] { load_weights(*model, golden("wrapped.pt")); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("wrapped.pt"), HasSubstr("missing in the file: 3.weight"),
                                       HasSubstr("missing in the file: 3.bias"),
                                       HasSubstr("0.weight: Float [5, 3] in the model, Float [4, 3]"),
                                       HasSubstr("0.bias: Float [5]"),
                                       HasSubstr("2.weight: Double [2, 4] in the model, Float [2, 4]"),
                                       HasSubstr("2.bias: Double"), Not(HasSubstr("1.weight")))));
  const auto after = checkpoint::weights_of(*model);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(test::same_bits(after[i].second, before[i].second));

  EXPECT_THAT([] { load_weights(*torch::nn::Sequential(torch::nn::Linear(3, 4)), golden("network.pt")); },
              ThrowsMessage<ConfigError>(HasSubstr("not in the model: 2.bias")));
}

TEST(WeightsTest, ManyDifferencesAreCounted) {
  torch::nn::Sequential model;
  for (int i = 0; i < 30; ++i) model->push_back(torch::nn::Linear(2, 2));
  // Six of 60 names are in the file, five of them with another shape, and three more.
  EXPECT_THAT([&] { load_weights(*model, golden("network.pt")); },
              ThrowsMessage<ConfigError>(
                  AllOf(HasSubstr("and 42 more"), HasSubstr("missing in the file: 3.weight"))));
}

TEST(WeightsTest, WithoutStrictWhatFitsIsLoaded) {
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::ReLU(),
                              torch::nn::Linear(2, 2));
  model->ptr(0)->to(torch::kDouble);
  const LoadedWeights loaded = load_weights(*model, golden("network.pt"), {.strict = false});
  EXPECT_THAT(loaded.missing, ElementsAre("3.weight", "3.bias"));
  EXPECT_THAT(loaded.unexpected, ElementsAre("2.weight", "2.bias"));
  EXPECT_THAT(loaded.converted, ElementsAre("0.weight", "0.bias"));
  EXPECT_TRUE(model->parameters()[0].equal(torch::arange(12).reshape({4, 3}).to(torch::kDouble)));
  EXPECT_THAT([] { load_weights(*network(7), golden("network.pt"), {.strict = false}); },
              ThrowsMessage<ConfigError>(HasSubstr("2.weight: Float [7, 4]")));
}

TEST(WeightsTest, NamesOfTheFileCanBeMapped) {
  torch::nn::Sequential model({{"first", torch::nn::Linear(2, 1)}});
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "old.pt";
  const auto rename = [](std::string name) { return "first" + name.substr(name.find('.')); };
  checkpoint::write_torch_file(file, {{"old.weight", torch::ones({1, 2})}, {"old.bias", torch::ones({1})}});
  load_weights(*model, file, {.rename = rename});
  EXPECT_TRUE(model->parameters()[0].equal(torch::ones({1, 2})));
  checkpoint::write_torch_file(file,
                               {{"a.weight", torch::zeros({1, 2})}, {"b.weight", torch::zeros({1, 2})}});
  EXPECT_THAT(
      [&] { load_weights(*model, file, {.rename = rename}); },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("'first.weight' in the model"), HasSubstr("'b.weight'"))));
}

struct TwoNamesImpl : torch::nn::Module {
  TwoNamesImpl() {
    encoder = register_parameter("encoder", torch::zeros({2, 2}));
    register_parameter("decoder", encoder);
  }
  torch::Tensor encoder;
};

// Python lists both names; safetensors.torch.save_model only one of them.
TEST(WeightsTest, TiedWeightsNeedOneName) {
  const test::TemporaryFolder folder;
  const at::Tensor shared = torch::ones({2, 2});
  TwoNamesImpl both;
  checkpoint::write_torch_file(folder.path() / "one.pt", {{"decoder", shared}});
  load_weights(both, folder.path() / "one.pt");
  EXPECT_TRUE(both.encoder.equal(shared));

  torch::nn::Module one;
  const at::Tensor weight = one.register_parameter("encoder", torch::zeros({2, 2}));
  checkpoint::write_torch_file(folder.path() / "both.pt", {{"encoder", shared}, {"decoder", shared}});
  load_weights(one, folder.path() / "both.pt");
  EXPECT_TRUE(weight.equal(shared));
}

class SaveWeightsTest : public testing::TestWithParam<std::string> {};

TEST_P(SaveWeightsTest, OpenAgain) {
  const test::TemporaryFolder folder;
  auto model = network();
  save_weights(*model, folder.path() / GetParam());
  auto other = network();
  {
    const torch::NoGradGuard guard;
    for (auto& parameter : other->parameters()) parameter.zero_();
  }
  load_weights(*other, folder.path() / GetParam());
  EXPECT_TRUE(equal(*model, *other));
}

INSTANTIATE_TEST_SUITE_P(Formats, SaveWeightsTest, testing::Values("w.pt", "w.pth", "w.safetensors"),
                         [](const auto& info) { return info.param.substr(2); });

TEST(WeightsTest, SafetensorsKeepEveryDtypeAndAlignThem) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "w.safetensors";
  const NamedTensors tensors = {{"bytes", torch::ones({3}, torch::kByte)},
                                {"half", torch::ones({3}, torch::kBFloat16)},
                                {"double", torch::arange(6, torch::kDouble).reshape({2, 3}).t()},
                                {"empty", torch::ones({0, 2})},
                                {"flag", torch::ones({}, torch::kBool)}};
  checkpoint::write_safetensors_file(path, tensors);
  const NamedTensors again = checkpoint::read_weights(path);
  ASSERT_EQ(again.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const auto found = std::find_if(again.begin(), again.end(),
                                    [&key = name](const auto& entry) { return entry.first == key; });
    ASSERT_NE(found, again.end()) << name;
    EXPECT_EQ(found->second.scalar_type(), tensor.scalar_type());
    EXPECT_TRUE(test::same_bits(found->second, tensor)) << name;
  }
  EXPECT_THAT(
      [&] {
        checkpoint::write_safetensors_file(path, {{"odd", torch::ones({2}).to_sparse()}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("'odd'")));
}

TEST(WeightsTest, ACheckpointGivesTheWeightsOfItsModel) {
  const test::TemporaryFolder folder;
  auto model = network();
  checkpoint::Snapshot snapshot;
  for (const auto& [name, tensor] : checkpoint::weights_of(*model)) {
    snapshot.pieces.push_back(checkpoint::TensorPiece::whole("model." + name, tensor));
  }
  snapshot.pieces.push_back(checkpoint::TensorPiece::whole("optimizer.0.momentum", torch::ones({3})));
  checkpoint::Store store(folder.path() / "run" / "checkpoints");
  snapshot.step = 3;
  store.save(snapshot);
  {
    const torch::NoGradGuard guard;
    model->parameters()[0].add_(1);
  }
  snapshot.step = 4;
  const checkpoint::Entry newest = store.save(snapshot);

  for (const auto& path : {folder.path() / "run", store.folder(), newest.path}) {
    auto other = network();
    load_weights(*other, path);
    EXPECT_TRUE(equal(*model, *other)) << path;
  }
  EXPECT_EQ(
      checkpoint::read_tensors(checkpoint::find_weights(newest.path), checkpoint::WhichTensors::kAll).size(),
      10U);
}

TEST(WeightsTest, WhereNoWeightsAreIsSaid) {
  const test::TemporaryFolder folder;
  auto model = network();
  EXPECT_THAT([&] { load_weights(*model, folder.path() / "absent"); },
              ThrowsMessage<ConfigError>(HasSubstr("absent")));
  EXPECT_THAT([&] { load_weights(*model, folder.path()); },
              ThrowsMessage<ConfigError>(HasSubstr("no usable checkpoint")));
  checkpoint::Snapshot snapshot;
  snapshot.pieces.push_back(checkpoint::TensorPiece::whole("optimizer.0", torch::ones({3})));
  checkpoint::Store store(folder.path());
  store.save(snapshot);
  EXPECT_THAT([&] { load_weights(*model, folder.path()); },
              ThrowsMessage<ConfigError>(HasSubstr("no tensor begins with 'model.'")));
}

}  // namespace
}  // namespace lockstep

namespace lockstep::checkpoint {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

TEST(CompareTensorsTest, EqualOnesAreEqualWhateverTheyHold) {
  const at::Tensor values = torch::tensor({1.0, -0.0, kNan, kInfinity, -kInfinity});
  EXPECT_EQ(compare_tensors(values, values.clone(), {}).elements, 0);
  EXPECT_EQ(compare_tensors(values.to(torch::kHalf), values, {}).elements, 0);
  EXPECT_EQ(compare_tensors(torch::ones({0, 3}), torch::ones({0, 3}), {}).elements, 0);
  EXPECT_EQ(compare_tensors(torch::ones({}, torch::kBool), torch::ones({}, torch::kBool), {}).elements, 0);
  const at::Tensor narrow = values.to(torch::kFloat8_e5m2);
  EXPECT_EQ(compare_tensors(narrow, narrow.clone(), {}).elements, 0);
}

TEST(CompareTensorsTest, TheLargestDifferencesAreTold) {
  const TensorDifference difference =
      compare_tensors(torch::tensor({1.0, 2.5, 100.0, 4.0}), torch::tensor({1.0, 2.0, 101.0, 4.0}), {});
  EXPECT_EQ(difference.elements, 2);
  EXPECT_EQ(difference.out_of_range, 2);
  EXPECT_DOUBLE_EQ(difference.max_absolute, 1.0);
  EXPECT_DOUBLE_EQ(difference.max_relative, 0.25);
}

TEST(CompareTensorsTest, ToleranceIsThatOfAllclose) {
  const at::Tensor a = torch::tensor({1.0, 2.5, 100.0});
  const at::Tensor b = torch::tensor({1.0, 2.0, 101.0});
  EXPECT_EQ(compare_tensors(a, b, {.relative = 0.01}).out_of_range, 1);
  EXPECT_EQ(compare_tensors(a, b, {.relative = 0.25}).out_of_range, 0);
  EXPECT_EQ(compare_tensors(a, b, {.absolute = 0.5}).out_of_range, 1);
  EXPECT_EQ(compare_tensors(a, b, {.absolute = 1}).out_of_range, 0);
}

TEST(CompareTensorsTest, NoToleranceLetsNanAndInfinityPass) {
  const Tolerance wide{.relative = 10, .absolute = 1e300};
  for (const double value : {kNan, kInfinity, -kInfinity}) {
    const TensorDifference difference =
        compare_tensors(torch::tensor({1.0}, torch::kDouble), torch::tensor({value}, torch::kDouble), wide);
    EXPECT_EQ(difference.out_of_range, 1) << value;
    EXPECT_EQ(difference.max_absolute, kInfinity) << value;
  }
  EXPECT_EQ(compare_tensors(torch::tensor({1.0}), torch::tensor({0.0}), {}).max_relative, kInfinity);
}

TEST(CompareTensorsTest, LargeIntegersAreNotRounded) {
  const int64_t large = (int64_t{1} << 60) + 1;
  const TensorDifference difference = compare_tensors(torch::tensor({large}), torch::tensor({large - 1}), {});
  EXPECT_EQ(difference.elements, 1);
}

TEST(CompareTensorsTest, ComplexAndStridedOnes) {
  const at::Tensor a = torch::complex(torch::ones({2, 3}), torch::zeros({2, 3})).t();
  EXPECT_EQ(compare_tensors(a, a.contiguous(), {}).elements, 0);
  EXPECT_DOUBLE_EQ(compare_tensors(a, a + c10::complex<double>(3, 4), {}).max_absolute, 5);
}

// More than are compared at once.
TEST(CompareTensorsTest, EveryPartOfALargeTensorCounts) {
  const at::Tensor a = torch::zeros({(int64_t{1} << 22) + 10}, torch::kByte);
  const at::Tensor b = a.clone();
  b[0] = 1;
  b[-1] = 7;
  const TensorDifference difference = compare_tensors(a, b, {});
  EXPECT_EQ(difference.elements, 2);
  EXPECT_DOUBLE_EQ(difference.max_absolute, 7);
}

}  // namespace
}  // namespace lockstep::checkpoint
