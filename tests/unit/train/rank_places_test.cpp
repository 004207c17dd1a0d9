#include "train/rank_places.h"

#include <gtest/gtest.h>

namespace lockstep::train {
namespace {

TEST(JobShape, RanksThatSeeTheirOwnGpuAloneHaveAGpuEach) {
  // All of them call it cuda:0.
  const std::vector<RankPlace> ranks = {{"0", "GPU-a"}, {"0", "GPU-b"}, {"1", "GPU-c"}, {"1", "GPU-d"}};
  const JobShape shape = shape_of(ranks);
  EXPECT_EQ(shape.processes, 4);
  EXPECT_EQ(shape.nodes, 2);
  EXPECT_EQ(shape.gpus, 4);
  EXPECT_EQ(shape.gpus_per_node, 2);
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(is_first_on_gpu(ranks, rank)) << rank;
}

TEST(JobShape, RanksThatShareAGpuCountItOnceAndTheFirstOfThemIsItsFirst) {
  const std::vector<RankPlace> ranks = {
      {"a", "GPU-1"}, {"a", "GPU-1"}, {"a", "GPU-2"}, {"b", "GPU-3"}, {"a", "GPU-2"}};
  const JobShape shape = shape_of(ranks);
  EXPECT_EQ(shape.processes, 5);
  EXPECT_EQ(shape.nodes, 2);
  EXPECT_EQ(shape.gpus, 3);
  EXPECT_EQ(shape.gpus_per_node, 2);
  const std::vector<bool> first = {true, false, true, true, false};
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(is_first_on_gpu(ranks, rank), first[static_cast<size_t>(rank)]) << rank;
  }
}

TEST(JobShape, CpusAreNoGpus) {
  const std::vector<RankPlace> ranks = {{"0", ""}, {"0", ""}, {"1", ""}};
  const JobShape shape = shape_of(ranks);
  EXPECT_EQ(shape.nodes, 2);
  EXPECT_EQ(shape.gpus, 0);
  EXPECT_EQ(shape.gpus_per_node, 0);
  EXPECT_FALSE(is_first_on_gpu(ranks, 0));
}

}  // namespace
}  // namespace lockstep::train
