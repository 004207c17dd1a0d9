#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <set>
#include <stdexcept>

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const SampleSeeds kSeeds(0, 0);
const std::vector<int64_t> kIndices{4, 0, 4, 9};

Batch batch_of(const Dataset& dataset, const std::vector<int64_t>& indices = kIndices) {
  return dataset.get_batch(indices, kSeeds);
}

void expect_rows(const at::Tensor& tensor) {
  const Batch batch = batch_of(TensorDataset{tensor});
  const at::Tensor expected = tensor.index_select(0, torch::tensor(kIndices));
  EXPECT_TRUE(at::equal(batch.data(), expected));
  EXPECT_EQ(batch.data().scalar_type(), tensor.scalar_type());
  EXPECT_EQ(batch.size(), 4);
}

TEST(TensorDatasetTest, ABatchHasTheRowsOfItsSamples) {
  expect_rows(torch::rand({10}));
  expect_rows(torch::rand({10, 3, 5}, torch::kDouble));
  expect_rows(torch::randint(0, 100, {10, 2}, torch::kUInt8));
  expect_rows(torch::rand({10, 4}) > 0.5);
  expect_rows(torch::rand({10, 0}));
}

TEST(TensorDatasetTest, TakesTensorsWhoseBytesAreNotTheirValuesInOrder) {
  expect_rows(torch::rand({3, 10}).t());
  expect_rows(torch::rand({1, 3}).expand({10, 3}));
  expect_rows(torch::rand({10, 2, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast));
  expect_rows(torch::conj(torch::rand({10, 3}, torch::kComplexFloat)));
}

TEST(TensorDatasetTest, ABatchIsACopyWithoutHistory) {
  const at::Tensor data = torch::ones({10, 2}, torch::requires_grad());
  const Batch batch = batch_of(TensorDataset{data});
  EXPECT_FALSE(batch.data().requires_grad());
  batch.data().zero_();
  EXPECT_TRUE(at::equal(data, torch::ones({10, 2})));
}

TEST(TensorDatasetTest, OneSampleIsARowOfEachTensor) {
  const TensorDataset dataset{torch::arange(6).reshape({3, 2}), torch::arange(3)};
  const Example example = dataset.get(2, 0);
  ASSERT_EQ(example.size(), 2U);
  EXPECT_TRUE(at::equal(example[0], torch::tensor({4, 5})));
  EXPECT_EQ(example[1].item<int64_t>(), 2);
}

TEST(TensorDatasetTest, RefusesTensorsThatDoNotFit) {
  EXPECT_THAT(
      [] {
        TensorDataset({torch::rand({3}), torch::rand({3, 2}), torch::rand({4})});
      },
      ThrowsMessage<ConfigError>(HasSubstr("3, 3, 4")));
  EXPECT_THAT([] { TensorDataset(std::vector<at::Tensor>{}); },
              ThrowsMessage<ConfigError>(HasSubstr("at least one")));
  EXPECT_THAT([] { TensorDataset{torch::tensor(1.0)}; }, ThrowsMessage<ConfigError>(HasSubstr("scalar")));
  EXPECT_THAT([] { TensorDataset{at::Tensor()}; }, ThrowsMessage<ConfigError>(HasSubstr("undefined")));
  EXPECT_THAT([] { batch_of(TensorDataset{torch::rand({9})}); },
              ThrowsMessage<ConfigError>(HasSubstr("index=9, samples=9")));
}

TEST(FunctionDatasetTest, StacksWhatTheFunctionGives) {
  const FunctionDataset dataset(10, [](int64_t index) -> Example {
    return {torch::full({2}, static_cast<float>(index)), torch::tensor(index)};
  });
  const Batch batch = batch_of(dataset);
  EXPECT_TRUE(at::equal(batch.target(), torch::tensor(kIndices)));
  EXPECT_EQ(batch.data().sizes(), (at::IntArrayRef{4, 2}));
  EXPECT_EQ(batch.data()[3][1].item<float>(), 9.0F);
}

TEST(FunctionDatasetTest, AFunctionOfTheSeedGetsTheSamplesOwn) {
  const FunctionDataset dataset(
      10, [](int64_t, uint64_t seed) -> Example { return {torch::tensor(static_cast<int64_t>(seed))}; });
  const Batch batch = batch_of(dataset);
  EXPECT_EQ(batch.data()[0].item<int64_t>(), static_cast<int64_t>(kSeeds.of(4)));
  EXPECT_EQ(batch.data()[2].item<int64_t>(), static_cast<int64_t>(kSeeds.of(4)));
}

TEST(FunctionDatasetTest, AFailureNamesTheSampleAndKeepsTheCause) {
  const FunctionDataset dataset(10, [](int64_t index) -> Example {
    if (index == 9) throw std::out_of_range("broken image");
    return {torch::tensor(index)};
  });
  try {
    batch_of(dataset);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[data] the dataset failed at sample 9: broken image");
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
}

TEST(FunctionDatasetTest, RefusesSamplesThatDoNotStack) {
  const FunctionDataset shapes(10,
                               [](int64_t index) -> Example { return {torch::zeros({index == 9 ? 3 : 2})}; });
  EXPECT_THAT([&] { batch_of(shapes); },
              ThrowsMessage<ConfigError>(
                  AllOf(HasSubstr("tensor 0 of sample 4 is Float [2]"), HasSubstr("of sample 9 Float [3]"))));
  const FunctionDataset counts(10,
                               [](int64_t index) { return Example(index == 0 ? 2 : 1, torch::zeros({1})); });
  EXPECT_THAT([&] { batch_of(counts); },
              ThrowsMessage<ConfigError>(HasSubstr("sample 4 has 1, sample 0 has 2")));
  const FunctionDataset nothing(10, [](int64_t) { return Example{}; });
  EXPECT_THROW(batch_of(nothing), ConfigError);
}

TEST(BatchTest, SaysWhatTheDatasetDoesNotGive) {
  const Batch batch = batch_of(TensorDataset{torch::rand({10})});
  EXPECT_THAT([&] { batch.target(); }, ThrowsMessage<ConfigError>(HasSubstr("no target")));
}

TEST(SampleSeedsTest, DifferByEpochIndexAndSeed) {
  std::set<uint64_t> seen;
  for (int64_t seed = -3; seed < 3; ++seed) {
    for (int64_t epoch = 0; epoch < 10; ++epoch) {
      for (int64_t index = 0; index < 100; ++index) seen.insert(SampleSeeds(seed, epoch).of(index));
    }
  }
  EXPECT_EQ(seen.size(), 6U * 10U * 100U);
}

TEST(BatchTest, PartsAreFoundByName) {
  Batch batch;
  batch.parts.push_back({"inside", Batch{{torch::ones({3, 1})}, {}}});
  batch.parts.push_back({"boundary", Batch{{torch::zeros({2, 1})}, {}}});
  EXPECT_EQ(batch["boundary"].data().size(0), 2);
  EXPECT_EQ(batch.size(), 5);
  EXPECT_THAT([&] { return batch["outside"].size(); },
              ThrowsMessage<ConfigError>(HasSubstr("no part 'outside': it has inside, boundary")));
  EXPECT_THAT([&] { return batch.data().size(0); }, ThrowsMessage<ConfigError>(HasSubstr("gives no")));
}

TEST(BatchTest, NoDataIsOneSample) { EXPECT_EQ(Batch().size(), 1); }

TEST(BatchTest, ALoaderWithAnotherBatchSizeGoesOnAtTheSamePlace) {
  Loader loader(TensorDataset({torch::arange(12).reshape({12, 1})}), {.batch_size = 4});
  Loader::Epoch epoch = loader.epoch(0);
  epoch.next();
  Loader half = loader.with_batch_size(2);
  half.load_state(loader.state());
  Loader::Epoch rest = half.epoch(0);
  EXPECT_EQ(rest.num_batches(), 4);
  EXPECT_TRUE(torch::equal(rest.next()->data(), torch::tensor({{4}, {5}})));
  EXPECT_THAT([&] { loader.with_batch_size(0); },
              ThrowsMessage<ConfigError>(HasSubstr("batch_size must be at least 1: 0")));
}

}  // namespace
}  // namespace lockstep
