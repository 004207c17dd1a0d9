#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
using Indices = std::vector<int64_t>;

// Sample i is the number i.
TensorDataset numbers(int64_t n) { return TensorDataset{torch::arange(n)}; }

Indices indices_of(const Batch& batch) {
  const auto* data = batch.data().const_data_ptr<int64_t>();
  return {data, data + batch.size()};
}

std::vector<Indices> batches_of(Loader::Epoch epoch) {
  std::vector<Indices> out;
  for (const Batch& batch : epoch) out.push_back(indices_of(batch));
  return out;
}

Indices samples_of(Loader::Epoch epoch) {
  Indices out;
  for (const Indices& batch : batches_of(std::move(epoch))) out.insert(out.end(), batch.begin(), batch.end());
  return out;
}

Indices range(int64_t n) {
  Indices out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

TEST(LoaderTest, CutsTheDatasetIntoBatches) {
  Loader loader(numbers(5), {.batch_size = 2});
  EXPECT_EQ(loader.num_batches(), 3);
  EXPECT_THAT(batches_of(loader.epoch(0)), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));

  Loader dropping(numbers(5), {.batch_size = 2, .drop_last = true});
  EXPECT_EQ(dropping.num_batches(), 2);
  EXPECT_THAT(batches_of(dropping.epoch(0)), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

TEST(LoaderTest, GivesTheBatchesOneByOneToo) {
  Loader loader(numbers(2));
  Loader::Epoch epoch = loader.epoch(0);
  EXPECT_EQ(epoch.num_batches(), 2);
  EXPECT_THAT(indices_of(*epoch.next()), ElementsAre(0));
  EXPECT_THAT(indices_of(*epoch.next()), ElementsAre(1));
  EXPECT_EQ(epoch.next(), nullptr);
  EXPECT_EQ(epoch.next(), nullptr);
}

TEST(LoaderTest, AnEmptyDatasetHasNoBatch) {
  Loader loader(numbers(0), {.shuffle = true, .num_workers = 2});
  EXPECT_EQ(loader.num_batches(), 0);
  EXPECT_THAT(batches_of(loader.epoch(0)), IsEmpty());
}

TEST(LoaderTest, ShufflesAsTheSamplerDoes) {
  Loader loader(numbers(20), {.batch_size = 3, .shuffle = true, .seed = 7});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    DistributedSampler sampler(20, {.seed = 7});
    sampler.set_epoch(epoch);
    EXPECT_EQ(samples_of(loader.epoch(epoch)), sampler.indices());
  }
}

TEST(LoaderTest, TrainingGivesAllRanksEquallyManyBatches) {
  for (int64_t n = 0; n <= 50; ++n) {
    for (int world_size = 1; world_size <= 9; ++world_size) {
      for (const bool drop_last : {false, true}) {
        const Loader whole(numbers(n), {.batch_size = 3, .shuffle = true, .drop_last = drop_last});
        const int64_t num_batches = whole.shard(0, world_size, ShardKind::kTrain).num_batches();
        for (int rank = 0; rank < world_size; ++rank) {
          Loader loader = whole.shard(rank, world_size, ShardKind::kTrain);
          ASSERT_EQ(loader.num_batches(), num_batches);
          ASSERT_EQ(static_cast<int64_t>(batches_of(loader.epoch(1)).size()), num_batches);
        }
      }
    }
  }
}

TEST(LoaderTest, EvaluationSeesEverySampleOnceAndInOrder) {
  for (int64_t n = 0; n <= 50; ++n) {
    const Loader whole(numbers(n), {.batch_size = 3, .shuffle = true, .drop_last = true});
    for (int world_size = 1; world_size <= 9; ++world_size) {
      Indices seen;
      for (int rank = 0; rank < world_size; ++rank) {
        Loader loader = whole.shard(rank, world_size, ShardKind::kEvaluation);
        const std::vector<Indices> batches = batches_of(loader.epoch(3));
        ASSERT_EQ(static_cast<int64_t>(batches.size()), loader.num_batches());
        for (const Indices& batch : batches) seen.insert(seen.end(), batch.begin(), batch.end());
      }
      ASSERT_EQ(seen, range(n));
    }
  }
}

TEST(LoaderTest, APartOfAPartIsAPartOfTheWhole) {
  const Loader whole(numbers(10));
  Loader part = whole.shard(1, 2, ShardKind::kTrain).shard(1, 5, ShardKind::kTrain);
  EXPECT_THAT(samples_of(part.epoch(0)), ElementsAre(1, 6));
}

TEST(LoaderTest, ResumesAsIfItHadNotStopped) {
  for (const bool drop_last : {false, true}) {
    const LoaderOptions options{.batch_size = 2, .shuffle = true, .drop_last = drop_last, .seed = 5};
    const std::vector<Indices> straight =
        batches_of(Loader(numbers(23), options).shard(1, 3, ShardKind::kTrain).epoch(4));
    for (size_t stop = 0; stop < straight.size(); ++stop) {
      Loader before = Loader(numbers(23), options).shard(1, 3, ShardKind::kTrain);
      Loader::Epoch epoch = before.epoch(4);
      for (size_t i = 0; i < stop; ++i) epoch.next();

      Loader after = Loader(numbers(23), {.batch_size = 2, .shuffle = true, .drop_last = drop_last});
      after.load_state(before.state());
      after = after.shard(1, 3, ShardKind::kTrain);
      EXPECT_EQ(after.state(), before.state());
      Loader::Epoch rest = after.epoch(4);
      EXPECT_EQ(rest.num_batches(), static_cast<int64_t>(straight.size() - stop));
      EXPECT_EQ(batches_of(std::move(rest)), std::vector<Indices>(straight.begin() + stop, straight.end()));
      EXPECT_EQ(after.state(), (SamplerState{5, 5, 0}));
      EXPECT_EQ(batches_of(after.epoch(5)), batches_of(before.epoch(5)));
    }
  }
}

// The samples that all ranks use in their next `count` batches, or in all that are
// left, in the order of their places.
Indices train_all_ranks(const LoaderOptions& options, int64_t n, int world_size, SamplerState& state,
                        int64_t count) {
  std::vector<Indices> ranks;
  SamplerState after;
  for (int rank = 0; rank < world_size; ++rank) {
    Loader loader = Loader(numbers(n), options).shard(rank, world_size, ShardKind::kTrain);
    loader.load_state(state);
    Loader::Epoch epoch = loader.epoch(state.epoch);
    Indices& samples = ranks.emplace_back();
    for (int64_t i = 0; i < count; ++i) {
      const Batch* batch = epoch.next();
      if (batch == nullptr) break;
      const Indices indices = indices_of(*batch);
      samples.insert(samples.end(), indices.begin(), indices.end());
    }
    if (rank > 0) EXPECT_EQ(loader.state(), after);
    after = loader.state();
  }
  state = after;
  Indices all;
  for (size_t i = 0; i < ranks[0].size(); ++i) {
    for (const Indices& rank : ranks) all.push_back(rank.at(i));
  }
  return all;
}

TEST(LoaderTest, ResumesWithOtherWorldAndBatchSizesWithoutReplayOrSkip) {
  constexpr int64_t kSize = 61;
  Loader straight(numbers(kSize), {.shuffle = true, .seed = 2});
  const Indices order = samples_of(straight.epoch(3));
  for (const auto& [first, second] : {std::pair(4, 2), std::pair(1, 3), std::pair(3, 4)}) {
    SamplerState state{2, 3, 0};
    Indices used = train_all_ranks({.batch_size = 2, .shuffle = true}, kSize, first, state, 3);
    EXPECT_EQ(state, (SamplerState{2, 3, 6 * first}));
    const LoaderOptions other{.batch_size = 5, .shuffle = true};
    const Indices rest = train_all_ranks(other, kSize, second, state, INT64_MAX);
    EXPECT_EQ(state, (SamplerState{2, 4, 0}));
    used.insert(used.end(), rest.begin(), rest.end());
    ASSERT_LT(static_cast<int64_t>(used.size()), kSize + second);
    for (size_t place = 0; place < used.size(); ++place) ASSERT_EQ(used[place], order[place % kSize]);
  }
}

TEST(LoaderTest, AStreamGoesFromEpochToEpoch) {
  for (const int num_workers : {0, 3}) {
    Loader loader(numbers(7), {.batch_size = 3, .shuffle = true, .num_workers = num_workers});
    std::vector<Indices> expected;
    for (int64_t epoch = 2; epoch < 5; ++epoch) {
      for (Indices& batch : batches_of(loader.epoch(epoch))) expected.push_back(std::move(batch));
    }
    Loader::Epoch stream = loader.stream(2);
    for (size_t i = 0; i < 5; ++i) ASSERT_EQ(indices_of(*stream.next()), expected[i]);

    const SamplerState state = loader.state();
    EXPECT_EQ(state, (SamplerState{0, 3, 6}));
    loader.load_state(state);
    stream = loader.stream(3);
    for (size_t i = 5; i < expected.size(); ++i) ASSERT_EQ(indices_of(*stream.next()), expected[i]);
  }
}

TEST(LoaderTest, OnlyTheLastEpochMovesTheState) {
  Loader loader(numbers(4));
  Loader::Epoch old = loader.epoch(0);
  Loader::Epoch current = loader.epoch(1);
  current.next();
  old.next();
  EXPECT_EQ(loader.state(), (SamplerState{0, 1, 1}));
}

TEST(LoaderTest, AnEpochOutlivesItsLoader) {
  EXPECT_EQ(samples_of(Loader(numbers(5), {.num_workers = 2}).epoch(0)), range(5));
}

TEST(LoaderTest, RefusesWhatMakesNoSense) {
  const auto refuses = [](const LoaderOptions& options, const char* text) {
    EXPECT_THAT([&] { Loader(numbers(4), options); }, ThrowsMessage<ConfigError>(HasSubstr(text)));
  };
  refuses({.batch_size = 0}, "batch_size must be at least 1: 0");
  refuses({.num_workers = -1}, "num_workers must be at least 0: -1");
  refuses({.prefetch = 0}, "prefetch must be at least 1: 0");
  EXPECT_THROW(Loader(std::shared_ptr<const Dataset>()), ConfigError);

  Loader loader(numbers(4));
  EXPECT_THROW(loader.shard(2, 2, ShardKind::kTrain), ConfigError);
  EXPECT_THAT([&] { loader.load_state({0, 0, 5}); }, ThrowsMessage<ConfigError>(HasSubstr("position=5")));
  loader.load_state({0, 3, 2});
  EXPECT_THAT([&] { loader.epoch(0); }, ThrowsMessage<ConfigError>(HasSubstr("resumes in epoch 3: epoch 0")));
  Loader evaluation = loader.shard(0, 1, ShardKind::kEvaluation);
  EXPECT_THAT([&] { evaluation.state(); }, ThrowsMessage<ConfigError>(HasSubstr("training only")));
  EXPECT_THAT([&] { evaluation.load_state({}); }, ThrowsMessage<ConfigError>(HasSubstr("training only")));
  EXPECT_THAT([] { Loader(numbers(4), {.batch_size = 5, .drop_last = true}).stream(); },
              ThrowsMessage<ConfigError>(HasSubstr("at least one batch")));
}

// --- streams ---

// Sample i of an epoch is the number i, plus 1000 for every other seed.
class Counting : public StreamDataset {
 public:
  Counting(int64_t size, int64_t end) : size_(size), end_(end) {}

  int64_t size() const override { return size_; }
  std::unique_ptr<Stream> open(uint64_t seed) const override {
    ++opened;
    if (std::find(seeds_.begin(), seeds_.end(), seed) == seeds_.end()) seeds_.push_back(seed);
    const auto epoch = std::find(seeds_.begin(), seeds_.end(), seed) - seeds_.begin();
    return std::make_unique<Numbers>(epoch * 1000, epoch * 1000 + end_);
  }

  mutable int opened = 0;

 private:
  class Numbers : public Stream {
   public:
    Numbers(int64_t next, int64_t end) : next_(next), end_(end) {}
    std::optional<Example> next() override {
      if (next_ == end_) return std::nullopt;
      return Example{torch::tensor(next_++)};
    }

   private:
    int64_t next_;
    int64_t end_;
  };

  int64_t size_;
  int64_t end_;
  mutable std::vector<uint64_t> seeds_;
};

TEST(StreamTest, EveryRankTakesItsShareOfOneStream) {
  for (const int workers : {0, 4}) {
    const auto data = std::make_shared<Counting>(10, 10);
    Loader whole(data, {.batch_size = 2, .num_workers = workers});
    EXPECT_THAT(samples_of(whole.epoch(0)), testing::ElementsAreArray(range(10)));
    EXPECT_EQ(data->opened, 1) << "an epoch reads the stream once";
    EXPECT_THAT(samples_of(whole.epoch(1)), testing::Each(testing::Ge(1000))) << "another seed";
    Loader second = whole.shard(1, 3, ShardKind::kTrain);
    EXPECT_THAT(samples_of(second.epoch(0)), ElementsAre(1, 4, 7, 0)) << "the last one is padding";
    Loader last = whole.shard(2, 3, ShardKind::kEvaluation);
    EXPECT_THAT(samples_of(last.epoch(0)), ElementsAre(7, 8, 9));
  }
}

TEST(StreamTest, ResumesInTheMiddleOnAnotherNumberOfRanks) {
  const auto data = std::make_shared<Counting>(12, 12);
  Loader first = Loader(data, {.batch_size = 2}).shard(0, 2, ShardKind::kTrain);
  Loader::Epoch epoch = first.epoch(0);
  EXPECT_THAT(indices_of(*epoch.next()), ElementsAre(0, 2));
  Indices rest;
  for (int rank = 0; rank < 4; ++rank) {
    Loader resumed = Loader(data, {.batch_size = 2}).shard(rank, 4, ShardKind::kTrain);
    resumed.load_state(first.state());
    const Indices own = samples_of(resumed.epoch(0));
    rest.insert(rest.end(), own.begin(), own.end());
  }
  EXPECT_THAT(rest, testing::UnorderedElementsAre(4, 5, 6, 7, 8, 9, 10, 11));
}

TEST(StreamTest, RefusesWhatAStreamCannotDo) {
  const auto data = std::make_shared<Counting>(5, 3);
  EXPECT_THAT([&] { Loader(data, {.shuffle = true}); }, ThrowsMessage<ConfigError>(HasSubstr("one order")));
  Loader loader(data, {.batch_size = 2});
  EXPECT_THAT([&] { samples_of(loader.epoch(0)); },
              ThrowsMessage<ConfigError>(HasSubstr("ended before sample 3, and its size is 5")));
}

TEST(LoaderTest, AnOrderOfTheProgramIsForTrainingAlone) {
  const EpochOrder twice{.size = 6, .draw = [](int64_t, int64_t) { return Indices{2, 2, 0, 0, 1, 1}; }};
  Loader whole(numbers(3), {.batch_size = 4, .order = twice});
  EXPECT_EQ(whole.num_batches(), 2);
  EXPECT_THAT(batches_of(whole.epoch(0)), ElementsAre(ElementsAre(2, 2, 0, 0), ElementsAre(1, 1)));
  EXPECT_THAT(samples_of(whole.shard(1, 2, ShardKind::kTrain).epoch(0)), ElementsAre(2, 0, 1));
  EXPECT_THAT(samples_of(whole.shard(0, 1, ShardKind::kEvaluation).epoch(0)), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace lockstep
