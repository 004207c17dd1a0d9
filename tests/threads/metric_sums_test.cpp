#include "train/metric_sums.h"

#include <lockstep/c10d.h>

#include <cmath>
#include <vector>

#include "support/rank_threads.h"

namespace lockstep::train {
namespace {

TEST(MetricSumsTest, WeighsBatchesBySamplesAndRanksBySums) {
  test::run_ranks(2, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    const Communicator communicator = make_communicator(std::move(store), rank, 2, {.backend = "gloo"});
    MetricSums sums;
    // 30 samples of loss 1 and 10 of loss 5 on rank 0, 10 of loss 3 on rank 1.
    if (rank == 0) {
      sums.add(torch::tensor(1.0f), 30);
      sums.add(torch::tensor(5.0f), 10);
    } else {
      sums.add(torch::tensor(3.0f), 10);
    }
    EXPECT_DOUBLE_EQ(sums.own().values.at("loss"), rank == 0 ? 2.0 : 3.0);
    const MetricSums::Means means = sums.over(communicator);
    EXPECT_DOUBLE_EQ(means.values.at("loss"), 110.0 / 50.0);
    EXPECT_EQ(means.samples, 50);
    EXPECT_DOUBLE_EQ(sums.own().values.at("loss"), rank == 0 ? 2.0 : 3.0) << "reading changes nothing";
  });
}

TEST(MetricSumsTest, AMetricCountsOnTheRanksThatHaveIt) {
  test::run_ranks(3, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    const Communicator communicator = make_communicator(std::move(store), rank, 3, {.backend = "shm"});
    MetricSums sums;
    if (rank == 0) sums.add({torch::tensor(1.0), {{"accuracy", torch::tensor(0.5)}}}, 4);
    if (rank == 1) sums.add(torch::tensor(2.0), 4);
    const MetricSums::Means means = sums.over(communicator);
    EXPECT_DOUBLE_EQ(means.values.at("loss"), 1.5);
    EXPECT_DOUBLE_EQ(means.values.at("accuracy"), 0.5);
  });
}

// Two counts: hits and tries. A mean of the ranks' values would be another number.
TEST(MetricSumsTest, CountsAreAddedBeforeTheirValueIsComputed) {
  test::run_ranks(3, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    const Communicator communicator = make_communicator(std::move(store), rank, 3, {.backend = "shm"});
    const auto rate = [](const at::Tensor& sums) { return (sums[0] / sums[1]).item<double>(); };
    const auto counted = [&](double hits, double tries) {
      LossResult result{torch::tensor(1.0)};
      result.counts["rate"] = {torch::tensor({hits, tries}, torch::kFloat64), rate};
      return result;
    };
    MetricSums sums;
    if (rank == 0) sums.add(counted(1, 10), 4);
    if (rank == 1) sums.add(counted(30, 30), 4);
    // Rank 2 has no samples, and the same value.
    EXPECT_DOUBLE_EQ(sums.over(communicator).values.at("rate"), 31.0 / 40);
    const Json totals = sums.totals(communicator);
    MetricSums resumed;
    if (rank == 0) resumed.load_totals(totals);
    resumed.add(counted(1, 10), 1);
    EXPECT_DOUBLE_EQ(resumed.over(communicator).values.at("rate"), 34.0 / 70);
    EXPECT_THROW(resumed.add({torch::tensor(1.0), {}, {{"rate", {torch::ones({3}), rate}}}}, 1), ConfigError);
  });
}

// Samples 0 to 5 on three ranks, in batches of different sizes. The mean of the ranks' values would be
// another number, and two of them have only one class.
TEST(MetricSumsTest, AurocIsThatOfTheSamplesOfAllRanks) {
  test::run_ranks(3, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    const Communicator communicator = make_communicator(std::move(store), rank, 3, {.backend = "shm"});
    const auto scored = [](const std::vector<float>& scores, const std::vector<int64_t>& targets) {
      LossResult result{torch::tensor(1.0)};
      result.counts["auroc"] = auroc_counts(torch::tensor(scores), torch::tensor(targets));
      return result;
    };
    MetricSums sums;
    if (rank == 0) {
      sums.add(scored({0.1F, 0.4F}, {0, 0}), 2);
      sums.add(scored({0.3F}, {0}), 1);
    }
    if (rank == 1) sums.add(scored({0.35F, 0.8F}, {1, 1}), 2);
    // Rank 2 has no samples, and the same value.
    EXPECT_DOUBLE_EQ(sums.over(communicator).values.at("auroc"), 5.0 / 6);
    const Json totals = sums.totals(communicator);
    MetricSums resumed;
    if (rank == 0) resumed.load_totals(totals);
    if (rank == 2) resumed.add(scored({0.2F}, {1}), 1);
    EXPECT_DOUBLE_EQ(resumed.over(communicator).values.at("auroc"), 6.0 / 9);
  });
}

TEST(MetricSumsTest, NothingAddedIsNothing) {
  const MetricSums::Means means = MetricSums().over(Communicator());
  EXPECT_TRUE(means.values.empty());
  EXPECT_EQ(means.samples, 0);
}

TEST(MetricSumsTest, TotalsGoOnElsewhereToTheBit) {
  MetricSums whole;
  MetricSums first;
  for (const float value : {0.1f, 0.7f}) first.add(torch::tensor(value), 3);
  for (const float value : {0.1f, 0.7f, 0.3f}) whole.add(torch::tensor(value), 3);
  MetricSums second;
  second.load_totals(first.totals(Communicator()));
  second.add(torch::tensor(0.3f), 3);
  EXPECT_EQ(second.own().values.at("loss"), whole.own().values.at("loss"));
}

TEST(MetricSumsTest, KeepsWhatIsNotANumber) {
  MetricSums sums;
  sums.add(torch::tensor(std::nanf("")), 1);
  EXPECT_TRUE(std::isnan(sums.over(Communicator()).values.at("loss")));
}

}  // namespace
}  // namespace lockstep::train
