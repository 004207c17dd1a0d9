#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/trainer.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

double auroc_of(const std::vector<float>& all_scores, const std::vector<int64_t>& targets) {
  const MetricCounts counts = auroc_counts(torch::tensor(all_scores), torch::tensor(targets));
  EXPECT_TRUE(counts.appended);
  return counts.value(counts.counts);
}

// Of all pairs of a sample of each class, the share in which class 1 has the higher score.
TEST(AurocTest, IsTheShareOfPairsInTheRightOrder) {
  EXPECT_DOUBLE_EQ(auroc_of({0.1F, 0.4F, 0.35F, 0.8F}, {0, 0, 1, 1}), 0.75) << "the example of scikit-learn";
  EXPECT_DOUBLE_EQ(auroc_of({1, 2, 3, 4}, {0, 0, 1, 1}), 1);
  EXPECT_DOUBLE_EQ(auroc_of({4, 3, 2, 1}, {0, 0, 1, 1}), 0);
  EXPECT_DOUBLE_EQ(auroc_of({2, 2, 2, 2}, {0, 1, 0, 1}), 0.5) << "equal scores count half";
  EXPECT_DOUBLE_EQ(auroc_of({1, 2, 2, 3, 2}, {0, 0, 1, 1, 0}), (3 + 1 + 0.5 + 0.5) / 6);
}

TEST(AurocTest, AgreesWithAllPairsOfManySamples) {
  torch::manual_seed(3);
  const torch::Tensor many = torch::randint(0, 40, {300}).to(torch::kFloat32) / 7;
  const torch::Tensor targets = (torch::rand({300}) < 0.3).to(torch::kLong);
  const torch::Tensor ones = many.masked_select(targets == 1).unsqueeze(1);
  const torch::Tensor zeros = many.masked_select(targets == 0);
  const double right =
      ((ones > zeros).to(torch::kFloat64) + 0.5 * (ones == zeros).to(torch::kFloat64)).mean().item<double>();
  const MetricCounts counts = auroc_counts(many, targets);
  EXPECT_NEAR(counts.value(counts.counts), right, 1e-12);
}

TEST(AurocTest, NeedsBothClassesAndAScoreOfEachSample) {
  EXPECT_TRUE(std::isnan(auroc_of({1, 2}, {1, 1})));
  EXPECT_TRUE(std::isnan(auroc_of({}, {})));
  EXPECT_TRUE(std::isnan(auroc_of({1, NAN}, {0, 1})));
  EXPECT_THAT(
      [] {
        auroc_counts(torch::zeros({4, 2}), torch::zeros({4}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("needs one score of class 1 and one target for each sample")));
}

}  // namespace
}  // namespace lockstep
