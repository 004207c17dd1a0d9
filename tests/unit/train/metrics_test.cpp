// Metrics of classifiers, against values computed by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/trainer.h>
#include <torch/torch.h>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Four samples of four classes. The places of the targets among the scores: first, third, first, fourth.
torch::Tensor scores() {
  return torch::tensor(
      {{0.1, 0.2, 0.5, 0.3}, {0.9, 0.05, 0.8, 0.7}, {0.2, 0.3, 0.4, 0.1}, {0.6, 0.5, 0.1, 0.2}});
}
torch::Tensor target() { return torch::tensor({2, 3, 2, 2}, torch::kLong); }

TEST(TopKAccuracyTest, CountsTheTargetsAmongTheHighestScores) {
  const auto accuracy = [](int64_t k) { return top_k_accuracy(scores(), target(), k).item<double>(); };
  EXPECT_EQ(accuracy(1), 0.5);
  EXPECT_EQ(accuracy(2), 0.5);
  EXPECT_EQ(accuracy(3), 0.75);
  EXPECT_EQ(accuracy(4), 1);
}

TEST(TopKAccuracyTest, RefusesWhatIsNoNumberOfClasses) {
  for (const int64_t k : {-1, 0, 5}) {
    EXPECT_THAT([k] { top_k_accuracy(scores(), target(), k); },
                ThrowsMessage<ConfigError>(
                    HasSubstr("needs a k from 1 to the number of classes, 4: " + std::to_string(k))));
  }
  EXPECT_THAT([] { top_k_accuracy(scores(), target().narrow(0, 0, 3), 1); },
              ThrowsMessage<ConfigError>(HasSubstr("as many targets")));
}

double f1_of(const torch::Tensor& all_scores, F1Average average) {
  const MetricCounts counts = f1_counts(all_scores, target(), average);
  return counts.value(counts.counts.to(torch::kFloat64));
}

// Predicted are 2, 0, 2, 0. Class 0: two predictions, no target. Class 2: two predictions, three targets, two
// of them right. Class 3: a target without a prediction. Class 1 does not occur.
TEST(F1Test, IsTheMeanOfTheClassesThatOccurOrThatOfAllSamples) {
  const double class_2 = 2 * 2.0 / (2 + 3);
  EXPECT_NEAR(f1_of(scores(), F1Average::kMacro), (0 + class_2 + 0) / 3, 1e-12);
  EXPECT_NEAR(f1_of(scores(), F1Average::kMicro), 2 * 2.0 / (4 + 4), 1e-12);
}

TEST(F1Test, ClassesThatDoNotOccurChangeNothing) {
  const torch::Tensor wider = torch::cat({scores(), torch::zeros({4, 3})}, 1);
  for (const F1Average average : {F1Average::kMacro, F1Average::kMicro}) {
    EXPECT_NEAR(f1_of(wider, average), f1_of(scores(), average), 1e-12);
  }
}

TEST(F1Test, IsZeroWithoutSamples) {
  for (const F1Average average : {F1Average::kMacro, F1Average::kMicro}) {
    const MetricCounts counts = f1_counts(torch::zeros({0, 2}), torch::zeros({0}, torch::kLong), average);
    EXPECT_EQ(counts.value(counts.counts.to(torch::kFloat64)), 0);
  }
}

}  // namespace
}  // namespace lockstep
