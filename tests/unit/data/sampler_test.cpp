#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data.h>
#include <lockstep/error.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "support/golden.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
using Indices = std::vector<int64_t>;

SamplerOptions of_rank(SamplerOptions options, int rank, int world_size) {
  options.rank = rank;
  options.world_size = world_size;
  return options;
}

// The places of an epoch in the order in which all ranks together use them, each rank
// taking `count` samples, or all.
Indices deal(int64_t n, const SamplerOptions& options, int world_size, const SamplerState& from,
             int64_t count = -1) {
  std::vector<Indices> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    DistributedSampler sampler(n, of_rank(options, rank, world_size));
    sampler.load_state(from);
    ranks.push_back(sampler.indices());
    if (count >= 0) ranks.back().resize(static_cast<size_t>(count));
  }
  Indices all;
  for (size_t i = 0; i < ranks[0].size(); ++i) {
    for (const Indices& rank : ranks) all.push_back(rank.at(i));
  }
  return all;
}

Indices order_of_epoch(int64_t n, int64_t seed, int64_t epoch) {
  DistributedSampler sampler(n, {.seed = seed});
  sampler.set_epoch(epoch);
  return sampler.indices();
}

TEST(DistributedSamplerTest, EqualsPyTorchBitForBit) {
  std::ifstream file(test::data_path("unit/data/golden/sampler.json"));
  const auto golden = nlohmann::json::parse(file);
  ASSERT_GE(golden["cases"].size(), 150U);
  for (const auto& expected : golden["cases"]) {
    SamplerOptions options{.shuffle = expected["shuffle"],
                           .seed = expected["seed"],
                           .drop_last = expected["drop_last"],
                           .world_size = expected["world_size"]};
    for (; options.rank < options.world_size; ++options.rank) {
      DistributedSampler sampler(expected["n"], options);
      sampler.set_epoch(expected["epoch"]);
      const Indices indices = sampler.indices();
      ASSERT_EQ(static_cast<int64_t>(indices.size()), sampler.size());
      const auto& rank = expected["ranks"][static_cast<size_t>(options.rank)];
      if (rank.is_array()) {
        ASSERT_EQ(indices, rank.get<Indices>()) << expected;
      } else {
        uint64_t checksum = 0;
        for (size_t i = 0; i < indices.size(); ++i) checksum += static_cast<uint64_t>(indices[i]) * (i + 1);
        ASSERT_EQ(checksum, rank.get<uint64_t>()) << expected;
      }
    }
  }
}

TEST(DistributedSamplerTest, PadsWithTheStartOfTheOrder) {
  for (int64_t n = 1; n <= 50; ++n) {
    const Indices order = order_of_epoch(n, 3, 2);
    for (int world_size = 1; world_size <= 9; ++world_size) {
      const Indices used = deal(n, {}, world_size, {.seed = 3, .epoch = 2});
      ASSERT_EQ(used.size() % static_cast<size_t>(world_size), 0U);
      ASSERT_LT(static_cast<int64_t>(used.size()), n + world_size);
      for (size_t place = 0; place < used.size(); ++place) {
        ASSERT_EQ(used[place], order[place % static_cast<size_t>(n)]) << "n " << n << " world " << world_size;
      }
    }
  }
}

TEST(DistributedSamplerTest, DropLastUsesNoSampleTwice) {
  for (int64_t n = 0; n <= 50; ++n) {
    for (int world_size = 1; world_size <= 9; ++world_size) {
      Indices used = deal(n, {.drop_last = true}, world_size, {});
      ASSERT_EQ(static_cast<int64_t>(used.size()), n / world_size * world_size);
      std::sort(used.begin(), used.end());
      ASSERT_EQ(std::adjacent_find(used.begin(), used.end()), used.end());
    }
  }
}

TEST(DistributedSamplerTest, NoSamplesMakeAnEmptyEpoch) {
  const DistributedSampler sampler(0, {.rank = 1, .world_size = 2});
  EXPECT_EQ(sampler.size(), 0);
  EXPECT_THAT(sampler.indices(), IsEmpty());
}

TEST(DistributedSamplerTest, InOrderNeedsNoMemory) {
  constexpr int64_t kSize = int64_t{1} << 60;
  const DistributedSampler sampler(kSize, {.shuffle = false, .rank = 3, .world_size = 4});
  EXPECT_EQ(sampler.size(), kSize / 4);
  EXPECT_EQ(sampler.index(kSize / 4 - 1), kSize - 1);
}

TEST(DistributedSamplerTest, ResumesWhereItWas) {
  for (int64_t k = 0; k < 7; ++k) {
    DistributedSampler straight(20, {.seed = 1, .rank = 1, .world_size = 3});
    straight.set_epoch(4);
    const SamplerState state = straight.state_after(k);
    EXPECT_EQ(state, (SamplerState{1, 4, 3 * k}));
    DistributedSampler resumed(20, {.rank = 1, .world_size = 3});
    resumed.load_state(state);
    const Indices all = straight.indices();
    EXPECT_EQ(resumed.indices(), Indices(all.begin() + k, all.end()));
  }
}

TEST(DistributedSamplerTest, ResumesOnAnotherWorldSizeWithoutReplayOrSkip) {
  constexpr int64_t kSize = 47;
  const Indices order = order_of_epoch(kSize, 6, 1);
  const SamplerState start{.seed = 6, .epoch = 1};
  for (int before = 1; before <= 5; ++before) {
    for (int between = 1; between <= 5; ++between) {
      for (int after = 1; after <= 5; ++after) {
        Indices used = deal(kSize, {}, before, start, 3);
        SamplerState state = start;
        state.position = 3 * before;
        for (const int64_t index : deal(kSize, {}, between, state, 2)) used.push_back(index);
        state.position += 2 * between;
        for (const int64_t index : deal(kSize, {}, after, state)) used.push_back(index);
        ASSERT_LT(static_cast<int64_t>(used.size()), kSize + after);
        for (size_t place = 0; place < used.size(); ++place) ASSERT_EQ(used[place], order[place % kSize]);
      }
    }
  }
}

TEST(DistributedSamplerTest, TheEndOfAnEpochIsTheStartOfTheNext) {
  const DistributedSampler sampler(10, {.world_size = 4});
  EXPECT_EQ(sampler.state_after(sampler.size()), (SamplerState{0, 1, 0}));
}

TEST(DistributedSamplerTest, RefusesWhatItCannotDo) {
  EXPECT_THAT([] { DistributedSampler(10, {.rank = 2, .world_size = 2}); },
              ThrowsMessage<ConfigError>(HasSubstr("rank=2, world_size=2")));
  EXPECT_THAT([] { DistributedSampler(-1); }, ThrowsMessage<ConfigError>(HasSubstr("-1")));
  EXPECT_THAT([] { DistributedSampler(int64_t{1} << 32); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("shuffle=false"), HasSubstr("4294967296"))));
  EXPECT_THAT(
      [] {
        DistributedSampler(10).load_state({0, 0, 11});
      },
      ThrowsMessage<ConfigError>(HasSubstr("position=11, samples=10")));
  EXPECT_THAT([] { DistributedSampler(10).index(10); }, ThrowsMessage<ConfigError>(HasSubstr("of 10")));
}

TEST(EvaluationSamplerTest, GivesEverySampleToExactlyOneRankInOrder) {
  for (int64_t n = 0; n <= 50; ++n) {
    for (int world_size = 1; world_size <= 9; ++world_size) {
      int64_t next = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const EvaluationSampler sampler(n, rank, world_size);
        ASSERT_EQ(sampler.first(), next);
        ASSERT_GE(sampler.size(), n / world_size);
        ASSERT_LE(sampler.size(), EvaluationSampler(n, 0, world_size).size());
        ASSERT_LE(EvaluationSampler(n, 0, world_size).size() - sampler.size(), 1);
        next += sampler.size();
      }
      ASSERT_EQ(next, n);
    }
  }
}

// --- an order of the program ---

EpochOrder rotated(int64_t size) {
  return {.size = size, .draw = [size](int64_t seed, int64_t epoch) {
            Indices order(static_cast<size_t>(size));
            for (int64_t i = 0; i < size; ++i) order[static_cast<size_t>(i)] = (i + seed + epoch) % size / 2;
            return order;
          }};
}

TEST(SamplerTest, RanksShareTheOrderOfTheProgram) {
  SamplerOptions options{.shuffle = false, .order = rotated(10), .seed = 1};
  DistributedSampler one(5, options);
  one.set_epoch(3);
  EXPECT_THAT(one.indices(), ElementsAre(2, 2, 3, 3, 4, 4, 0, 0, 1, 1));
  for (int rank = 0; rank < 4; ++rank) {
    DistributedSampler sampler(5, of_rank(options, rank, 4));
    sampler.set_epoch(3);
    ASSERT_EQ(sampler.size(), 3) << "10 of 4 ranks, with two repeated";
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(sampler.index(i), one.index((rank + 4 * i) % 10));
  }
}

TEST(SamplerTest, TheOrderOfTheProgramContinuesInTheMiddleOnOtherRanks) {
  const SamplerOptions options{.shuffle = false, .order = rotated(12)};
  DistributedSampler before(6, of_rank(options, 0, 2));
  before.set_epoch(5);
  const SamplerState state = before.state_after(3);
  EXPECT_EQ(state.position, 6);
  Indices rest;
  for (int rank = 0; rank < 3; ++rank) {
    DistributedSampler after(6, of_rank(options, rank, 3));
    after.load_state(state);
    const Indices own = after.indices();
    rest.insert(rest.end(), own.begin(), own.end());
  }
  Indices expected = rotated(12).draw(0, 5);
  expected.erase(expected.begin(), expected.begin() + 6);
  EXPECT_THAT(rest, testing::UnorderedElementsAreArray(expected));
}

TEST(SamplerTest, RefusesBrokenOrders) {
  const auto use = [](EpochOrder order, bool shuffle = false) {
    return [order = std::move(order), shuffle] {
      DistributedSampler(3, {.shuffle = shuffle, .order = order}).indices();
    };
  };
  EXPECT_THAT(use(rotated(3), true), ThrowsMessage<ConfigError>(HasSubstr("exclude each other")));
  EXPECT_THAT(use({.size = 2, .draw = {}}), ThrowsMessage<ConfigError>(HasSubstr("needs a function")));
  EXPECT_THAT(use({.size = 2, .draw = [](int64_t, int64_t) { return Indices{0}; }}),
              ThrowsMessage<ConfigError>(HasSubstr("has 1 samples, and its size is 2")));
  EXPECT_THAT(use({.size = 1, .draw = [](int64_t, int64_t) { return Indices{3}; }}),
              ThrowsMessage<ConfigError>(HasSubstr("has sample 3, and the data set 3 samples")));
}

TEST(SamplerTest, WeightsDecideHowOftenASampleIsDrawn) {
  const EpochOrder order = weighted_order({1, 0, 3}, 4000);
  const Indices drawn = order.draw(0, 1);
  EXPECT_EQ(order.draw(1, 0), drawn) << "seed + epoch";
  EXPECT_NE(order.draw(0, 2), drawn);
  EXPECT_EQ(std::count(drawn.begin(), drawn.end(), 1), 0);
  EXPECT_NEAR(static_cast<double>(std::count(drawn.begin(), drawn.end(), 2)), 3000, 120);
  EXPECT_THAT(weighted_order({1, 0, 3}, 2, /*replacement=*/false).draw(0, 0),
              testing::UnorderedElementsAre(0, 2));
  EXPECT_THAT([] { weighted_order({1, -1}, 2); }, ThrowsMessage<ConfigError>(HasSubstr("weight 1 is -1")));
  EXPECT_THAT([] { weighted_order({0, 0}, 2); }, ThrowsMessage<ConfigError>(HasSubstr("a weight above 0")));
  EXPECT_THAT(
      [] {
        weighted_order({1, 0}, 2, false);
      },
      ThrowsMessage<ConfigError>(HasSubstr("without replacement")));
}

}  // namespace
}  // namespace lockstep
