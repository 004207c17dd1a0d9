#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::chrono::seconds kPatience(30);

// A door that stays open. Waiting is bounded, so that a bug fails and does not hang.
class Gate {
 public:
  void open() { promise_.set_value(); }
  void pass() const {
    if (future_.wait_for(kPatience) != std::future_status::ready)
      throw std::runtime_error("the gate stayed shut");
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

// Sample i is i and a random number.
Example noisy(int64_t index, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return {torch::tensor(index), torch::rand({2}, generator)};
}

struct Drawn {
  std::vector<int64_t> sizes;
  at::Tensor indices;
  at::Tensor noise;
};

Drawn draw(Loader& loader, int64_t epoch) {
  Drawn drawn;
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> noise;
  for (Batch& batch : loader.epoch(epoch)) {
    drawn.sizes.push_back(batch.size());
    indices.push_back(batch.data());
    noise.push_back(batch.target());
  }
  drawn.indices = torch::cat(indices);
  drawn.noise = torch::cat(noise);
  return drawn;
}

TEST(PrefetchTest, TheNumberOfThreadsChangesNothing) {
  LoaderOptions options{.batch_size = 7, .shuffle = true, .seed = 3};
  Loader plain(FunctionDataset(100, noisy), options);
  for (const int num_workers : {1, 4}) {
    for (const int prefetch : {1, 3}) {
      options.num_workers = num_workers;
      options.prefetch = prefetch;
      Loader threaded(FunctionDataset(100, noisy), options);
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        const Drawn expected = draw(plain, epoch);
        const Drawn actual = draw(threaded, epoch);
        EXPECT_EQ(actual.sizes, expected.sizes);
        EXPECT_TRUE(at::equal(actual.indices, expected.indices));
        EXPECT_TRUE(at::equal(actual.noise, expected.noise));
      }
    }
  }
}

TEST(PrefetchTest, TheNoiseOfASampleDependsOnTheEpochButNotOnTheWorld) {
  const Loader whole(FunctionDataset(12, noisy), {.batch_size = 5, .shuffle = true});
  Loader one = whole.shard(0, 1, ShardKind::kTrain);
  const Drawn all = draw(one, 1);
  for (int rank = 0; rank < 3; ++rank) {
    Loader part = whole.shard(rank, 3, ShardKind::kTrain);
    const Drawn own = draw(part, 1);
    for (int64_t i = 0; i < own.indices.size(0); ++i) {
      const at::Tensor place = (all.indices == own.indices[i]).nonzero().flatten();
      EXPECT_TRUE(at::equal(own.noise[i], all.noise[place.item<int64_t>()]));
    }
  }
  const Drawn other = draw(one, 2);
  EXPECT_FALSE(at::equal(all.noise.index_select(0, all.indices.argsort()),
                         other.noise.index_select(0, other.indices.argsort())));
}

TEST(PrefetchTest, ASlowBatchDoesNotChangeTheOrder) {
  Gate others_done;
  std::atomic<int> done = 0;
  FunctionDataset dataset(4, [&](int64_t index) -> Example {
    if (index == 0) others_done.pass();
    if (index != 0 && ++done == 3) others_done.open();
    return {torch::tensor(index)};
  });
  Loader loader(std::move(dataset), {.num_workers = 2});
  int64_t expected = 0;
  for (Batch& batch : loader.epoch(0)) EXPECT_EQ(batch.data().item<int64_t>(), expected++);
  EXPECT_EQ(expected, 4);
}

TEST(PrefetchTest, ReadsNoFurtherAheadThanAsked) {
  constexpr int kAhead = 2 * 3;
  std::atomic<int64_t> consumed = 0;
  std::atomic<int64_t> furthest_ahead = 0;
  FunctionDataset dataset(200, [&](int64_t index) -> Example {
    const int64_t ahead = index - consumed;
    for (int64_t seen = furthest_ahead; ahead > seen && !furthest_ahead.compare_exchange_weak(seen, ahead);) {
    }
    return {torch::tensor(index)};
  });
  Loader loader(std::move(dataset), {.num_workers = 2, .prefetch = 3});
  Loader::Epoch epoch = loader.epoch(0);
  // While next() runs, a batch has left the queue that is not counted as consumed yet.
  while (epoch.next() != nullptr) ++consumed;
  EXPECT_EQ(consumed, 200);
  EXPECT_LE(furthest_ahead, kAhead);
}

TEST(PrefetchTest, TheStateIsTheConsumersNotTheReaders) {
  Gate all_read;
  std::atomic<int> read = 0;
  FunctionDataset dataset(8, [&](int64_t index) -> Example {
    if (++read == 8) all_read.open();
    return {torch::tensor(index)};
  });
  Loader loader(std::move(dataset), {.num_workers = 4});
  Loader::Epoch epoch = loader.epoch(0);
  all_read.pass();
  EXPECT_EQ(loader.state(), (SamplerState{0, 0, 0}));
  epoch.next();
  epoch.next();
  EXPECT_EQ(loader.state(), (SamplerState{0, 0, 2}));
}

TEST(PrefetchTest, AFailureNamesTheSampleAndLosesNoOtherBatch) {
  for (const int num_workers : {0, 1, 4}) {
    FunctionDataset dataset(9, [](int64_t index) -> Example {
      if (index == 4) throw std::out_of_range("broken image");
      return {torch::tensor(index)};
    });
    Loader loader(std::move(dataset), {.batch_size = 3, .num_workers = num_workers});
    Loader::Epoch epoch = loader.epoch(0);
    EXPECT_EQ(epoch.next()->data()[0].item<int64_t>(), 0);
    EXPECT_THAT([&] { epoch.next(); },
                ThrowsMessage<ConfigError>("[data] the dataset failed at sample 4: broken image"));
    EXPECT_EQ(loader.state(), (SamplerState{0, 0, 3}));
    EXPECT_EQ(epoch.next()->data()[0].item<int64_t>(), 6);
    EXPECT_EQ(epoch.next(), nullptr);
  }
}

class BrokenBatches : public Dataset {
 public:
  int64_t size() const override { return 4; }
  Example get(int64_t, uint64_t) const override { return {}; }
  Batch get_batch(std::span<const int64_t>, const SampleSeeds&) const override {
    TORCH_CHECK(false, "no such file");
  }
};

TEST(PrefetchTest, AFailureOfAWholeBatchNamesItsSamples) {
  for (const int num_workers : {0, 2}) {
    Loader loader(BrokenBatches(), {.batch_size = 2, .num_workers = num_workers});
    Loader::Epoch epoch = loader.epoch(0);
    EXPECT_THAT(
        [&] { epoch.next(); },
        ThrowsMessage<ConfigError>("[data] the dataset failed at the batch of samples 0, 1: no such file"));
  }
}

TEST(PrefetchTest, LeavingAnEpochEarlyEndsItsThreads) {
  auto dataset = std::make_shared<FunctionDataset>(
      1000, [](int64_t index) -> Example { return {torch::tensor(index)}; });
  {
    Loader loader(dataset, {.num_workers = 4});
    for (int64_t epoch = 0; epoch < 20; ++epoch) {
      for (Batch& batch : loader.epoch(epoch)) {
        if (batch.data().item<int64_t>() == epoch) break;
      }
    }
  }
  EXPECT_EQ(dataset.use_count(), 1);  // each thread holds the dataset
}

TEST(PrefetchTest, DestroyingAnEpochWaitsForTheBatchesBeingRead) {
  Gate reading;
  Gate proceed;
  std::atomic<int> calls = 0;
  FunctionDataset dataset(1000, [&](int64_t index) -> Example {
    if (++calls == 2) reading.open();
    proceed.pass();
    return {torch::tensor(index)};
  });
  Loader loader(std::move(dataset), {.num_workers = 2});
  std::optional<Loader::Epoch> epoch(loader.epoch(0));
  reading.pass();
  std::future<void> gone = std::async(std::launch::async, [&] { epoch.reset(); });
  EXPECT_EQ(gone.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  proceed.open();
  ASSERT_EQ(gone.wait_for(kPatience), std::future_status::ready);
  EXPECT_LE(calls, 4);  // no more than could be read ahead
}

}  // namespace
}  // namespace lockstep
