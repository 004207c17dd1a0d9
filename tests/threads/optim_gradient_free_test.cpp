#include <lockstep/communicator.h>
#include <lockstep/search.h>

#include <atomic>

#include "support/formula.h"
#include "support/group_case.h"

namespace lockstep {
namespace {

double loss(const at::Tensor& point) {
  return ((point - 0.25).square() * (1 + point.abs())).sum().item<double>();
}

std::vector<std::unique_ptr<GradientFreeOptimizer>> all_kinds(uint64_t seed) {
  const auto start = torch::full({3}, 0.5, torch::kDouble);
  std::vector<std::unique_ptr<GradientFreeOptimizer>> all;
  all.push_back(make_cma_es(start, {.seed = seed}));
  all.push_back(make_one_plus_one(start, {.seed = seed}));
  all.push_back(make_random_search(start, {.seed = seed}));
  all.push_back(make_differential_evolution(start, {.seed = seed}));
  return all;
}

// The losses of 20 rounds of 7 candidates, kind by kind.
at::Tensor trajectory(std::vector<std::unique_ptr<GradientFreeOptimizer>>& all, const PointLoss& point_loss,
                      const Communicator& communicator) {
  std::vector<at::Tensor> losses;
  for (auto& optimizer : all) {
    for (int i = 0; i < 20; ++i)
      losses.push_back(evaluate_over_ranks(*optimizer, 7, point_loss, communicator));
    losses.push_back(optimizer->best());
  }
  return torch::cat(losses);
}

TEST(GradientFreeRanks, TheTrajectoryDoesNotDependOnTheNumberOfRanks) {
  auto single = all_kinds(5);
  const at::Tensor expected = trajectory(single, loss, Communicator());
  for (const test::GroupCase& group :
       {test::GroupCase{"gloo", {0, 0}}, {"shm", {0, 0}}, {"shm", {0, 0, 0}}, {"auto", {0, 0, 1}}}) {
    std::atomic<int64_t> evaluations = 0;
    test::run_group(group, [&](Communicator& communicator) {
      auto all = all_kinds(5);
      const auto counted = [&](const at::Tensor& point) {
        ++evaluations;
        return loss(point);
      };
      EXPECT_TRUE(test::same_bits(trajectory(all, counted, communicator), expected)) << group.name();
    });
    EXPECT_EQ(evaluations, 4 * 20 * 7) << "each candidate was evaluated once";
  }
}

TEST(GradientFreeRanks, Rank0sCandidatesCount) {
  test::run_group({"shm", {0, 0}}, [](Communicator& communicator) {
    // Rank 1's generator differs, as its linear algebra might.
    auto all = all_kinds(communicator.rank() == 0 ? 5 : 6);
    const at::Tensor own = trajectory(all, loss, communicator);
    auto single = all_kinds(5);
    const at::Tensor expected = trajectory(single, loss, Communicator());
    EXPECT_TRUE(test::same_bits(own, expected));
  });
}

TEST(GradientFreeRanks, MoreRanksThanCandidates) {
  test::run_group({"shm", {0, 0, 0}}, [](Communicator& communicator) {
    auto optimizer = make_one_plus_one(torch::zeros({2}, torch::kDouble), {.seed = 1});
    auto alone = make_one_plus_one(torch::zeros({2}, torch::kDouble), {.seed = 1});
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(test::same_bits(evaluate_over_ranks(*optimizer, 1, loss, communicator),
                                  evaluate_over_ranks(*alone, 1, loss, Communicator())));
    }
  });
}

}  // namespace
}  // namespace lockstep
