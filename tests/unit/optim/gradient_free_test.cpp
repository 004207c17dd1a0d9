#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <lockstep/search.h>

#include <cmath>
#include <limits>

#include "support/config_error.h"
#include "support/formula.h"

namespace lockstep {
namespace {

using test::error_of;
using testing::HasSubstr;

double sphere(const at::Tensor& point) {
  const auto x = point.accessor<double, 1>();
  double sum = 0;
  for (int64_t i = 0; i < point.numel(); ++i) sum += x[i] * x[i];
  return sum;
}

double rosenbrock(const at::Tensor& point) {
  const auto x = point.accessor<double, 1>();
  double sum = 0;
  for (int64_t i = 0; i + 1 < point.numel(); ++i) {
    sum += 100 * std::pow(x[i + 1] - x[i] * x[i], 2) + std::pow(1 - x[i], 2);
  }
  return sum;
}

// Axes of very different lengths, turned: the diagonal alone does not describe it.
double turned_ellipse(const at::Tensor& point) {
  const auto x = point.accessor<double, 1>();
  return std::pow(x[0] + x[1], 2) + 1e4 * std::pow(x[0] - x[1], 2);
}

// Whether the loss falls below `target` within so many evaluations.
bool finds(GradientFreeOptimizer& optimizer, const PointLoss& loss, double target, int64_t evaluations) {
  while (optimizer.best_loss() >= target && optimizer.evaluations() < evaluations) {
    evaluate_over_ranks(optimizer, optimizer.population(), loss, Communicator());
  }
  return optimizer.best_loss() < target;
}

at::Tensor point(int64_t dimension, double value) { return torch::full({dimension}, value, torch::kDouble); }

TEST(GradientFree, CmaEsFindsTheMinimum) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    for (int64_t dimension : {1, 2, 5, 10}) {
      auto on_sphere = make_cma_es(point(dimension, 3), {.sigma = 0.5, .seed = seed});
      EXPECT_TRUE(finds(*on_sphere, sphere, 1e-10, 400 * (dimension + 2)))
          << dimension << " dimensions, seed " << seed;
      if (dimension == 1) continue;
      auto in_valley = make_cma_es(point(dimension, 0), {.sigma = 0.3, .seed = seed});
      EXPECT_TRUE(finds(*in_valley, rosenbrock, 1e-8, 1000 * dimension))
          << dimension << " dimensions, seed " << seed;
      EXPECT_EQ(rosenbrock(in_valley->best()), in_valley->best_loss());
    }
    auto turned = make_cma_es(point(2, 3), {.sigma = 0.5, .seed = seed});
    EXPECT_TRUE(finds(*turned, turned_ellipse, 1e-10, 2000)) << "seed " << seed;
  }
}

TEST(GradientFree, SeparableCmaEsWorksInManyDimensions) {
  const auto scaled = [](const at::Tensor& x) {
    return (x.square() * torch::linspace(1, 100, x.numel(), torch::kDouble)).sum().item<double>();
  };
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    auto optimizer = make_cma_es(point(60, 1), {.sigma = 0.3, .full_dimension = 20, .seed = seed});
    EXPECT_TRUE(finds(*optimizer, scaled, 1e-4, 20000)) << "seed " << seed;
  }
}

TEST(GradientFree, OnePlusOneFindsTheMinimum) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    auto on_sphere = make_one_plus_one(point(5, 3), {.seed = seed});
    EXPECT_TRUE(finds(*on_sphere, sphere, 1e-8, 2000)) << "seed " << seed;
    auto in_valley = make_one_plus_one(point(2, 0), {.seed = seed});
    EXPECT_TRUE(finds(*in_valley, rosenbrock, 1e-2, 6000)) << "seed " << seed;
  }
}

TEST(GradientFree, DifferentialEvolutionFindsTheMinimum) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    auto on_sphere = make_differential_evolution(point(5, 3), {.seed = seed});
    EXPECT_TRUE(finds(*on_sphere, sphere, 1e-8, 10000)) << "seed " << seed;
    auto in_valley = make_differential_evolution(point(4, 0), {.seed = seed});
    EXPECT_TRUE(finds(*in_valley, rosenbrock, 1e-6, 20000)) << "seed " << seed;
  }
}

TEST(GradientFree, RandomSearchComesCloser) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    auto optimizer = make_random_search(point(2, 1), {.seed = seed});
    EXPECT_TRUE(finds(*optimizer, sphere, 0.05, 1000)) << "seed " << seed;
  }
}

using Make = std::function<std::unique_ptr<GradientFreeOptimizer>(uint64_t seed)>;

std::vector<Make> all_kinds() {
  return {
      [](uint64_t seed) { return make_cma_es(point(4, 0.5), {.seed = seed}); },
      [](uint64_t seed) { return make_cma_es(point(4, 0.5), {.full_dimension = 0, .seed = seed}); },
      [](uint64_t seed) { return make_one_plus_one(point(4, 0.5), {.seed = seed}); },
      [](uint64_t seed) { return make_random_search(point(4, 0.5), {.seed = seed}); },
      [](uint64_t seed) { return make_differential_evolution(point(4, 0.5), {.seed = seed}); },
  };
}

at::Tensor round(GradientFreeOptimizer& optimizer, int64_t n) {
  const auto candidates = optimizer.ask(n);
  auto losses = torch::empty({n}, torch::kDouble);
  for (int64_t i = 0; i < n; ++i) losses[i] = rosenbrock(candidates[i]);
  optimizer.tell(candidates, losses);
  return candidates;
}

TEST(GradientFree, TheSeedDecides) {
  for (const auto& make : all_kinds()) {
    auto first = make(7);
    auto again = make(7);
    auto other = make(8);
    bool differs = false;
    for (int i = 0; i < 30; ++i) {
      const auto candidates = round(*first, 3);
      EXPECT_TRUE(test::same_bits(candidates, round(*again, 3))) << first->kind();
      differs |= !torch::equal(candidates, round(*other, 3));
    }
    EXPECT_TRUE(differs) << first->kind();
  }
}

TEST(GradientFree, StateGoesOn) {
  for (const auto& make : all_kinds()) {
    auto straight = make(7);
    for (int i = 0; i < 20; ++i) round(*straight, 5);
    NamedTensors state = straight->state();
    for (auto& item : state) item.second = item.second.clone();
    auto resumed = make(99);
    resumed->load_state(state);
    EXPECT_EQ(resumed->best_loss(), straight->best_loss());
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(test::same_bits(round(*straight, 5), round(*resumed, 5))) << straight->kind() << " " << i;
    }
    EXPECT_TRUE(test::same_bits(resumed->best(), straight->best()));
    EXPECT_EQ(resumed->evaluations(), 200);
  }
}

TEST(GradientFree, RemembersTheBestPointNotTheLast) {
  for (const auto& make : all_kinds()) {
    auto optimizer = make(3);
    EXPECT_EQ(optimizer->best_loss(), std::numeric_limits<double>::infinity());
    double least = std::numeric_limits<double>::infinity();
    at::Tensor best;
    for (int i = 0; i < 25; ++i) {
      const auto candidates = round(*optimizer, 4);
      for (int64_t row = 0; row < 4; ++row) {
        const double loss = rosenbrock(candidates[row]);
        if (loss < least) {
          least = loss;
          best = candidates[row].clone();
        }
      }
    }
    EXPECT_EQ(optimizer->best_loss(), least);
    EXPECT_TRUE(test::same_bits(optimizer->best(), best));
    optimizer->observe(point(4, 1), 0);
    EXPECT_EQ(optimizer->best_loss(), 0);
    EXPECT_TRUE(torch::equal(optimizer->best(), point(4, 1)));
  }
}

TEST(GradientFree, LossesThatAreNotFiniteAreTheWorst) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& make : all_kinds()) {
    auto optimizer = make(3);
    for (int i = 0; i < 3; ++i) {
      auto candidates = optimizer->ask(4);
      optimizer->tell(candidates, torch::tensor({nan, infinity, -infinity, nan}, torch::kDouble));
    }
    EXPECT_EQ(optimizer->best_loss(), infinity);
    auto candidates = optimizer->ask(4);
    EXPECT_TRUE(torch::isfinite(candidates).all().item<bool>()) << optimizer->kind();
    optimizer->tell(candidates, torch::tensor({nan, 2.0, 1.0, nan}, torch::kDouble));
    EXPECT_EQ(optimizer->best_loss(), 1);
    EXPECT_TRUE(test::same_bits(optimizer->best(), candidates[2]));
    EXPECT_TRUE(torch::isfinite(optimizer->ask(4)).all().item<bool>());
  }
}

TEST(GradientFree, WrongUseIsRefused) {
  for (const auto& make : all_kinds()) {
    auto optimizer = make(1);
    EXPECT_THAT(error_of([&] { optimizer->ask(0); }), HasSubstr("at least one"));
    EXPECT_THAT(error_of([&] {
                  optimizer->tell(torch::zeros({1, 4}), torch::zeros({1}));
                }),
                HasSubstr("tell()"));
    const auto candidates = optimizer->ask(3);
    EXPECT_THAT(error_of([&] { optimizer->ask(3); }), HasSubstr("tell()"));
    EXPECT_THAT(error_of([&] { optimizer->state(); }), HasSubstr("between ask() and tell()"));
    EXPECT_THAT(error_of([&] { optimizer->tell(candidates, torch::zeros({2})); }), HasSubstr("losses [2]"));
    EXPECT_THAT(error_of([&] {
                  optimizer->tell(torch::zeros({3, 5}), torch::zeros({3}));
                }),
                HasSubstr("candidates [3, 5]"));
    optimizer->tell(candidates, torch::zeros({3}));
    EXPECT_THAT(error_of([&] { optimizer->observe(torch::zeros({3}), 1); }), HasSubstr("4 numbers"));
  }
}

TEST(GradientFree, AStateThatDoesNotFitIsNamed) {
  auto cma = make_cma_es(point(4, 0));
  auto larger = make_cma_es(point(5, 0));
  auto random = make_random_search(point(4, 0));
  round(*cma, 4);
  const auto before = cma->best().clone();
  EXPECT_THAT(error_of([&] { cma->load_state(larger->state()); }),
              HasSubstr("cma_es/best is [5] there and [4] here"));
  EXPECT_THAT(error_of([&] { cma->load_state(random->state()); }), HasSubstr("not of the kind 'cma_es'"));
  auto longer = make_cma_es(point(4, 0))->state();
  longer.emplace_back("cma_es/more", torch::zeros({1}));
  EXPECT_THAT(error_of([&] { cma->load_state(longer); }), HasSubstr("9 tensors"));
  EXPECT_TRUE(torch::equal(cma->best(), before));
}

TEST(GradientFree, BadArgumentsAreNamed) {
  const auto start = point(2, 0);
  EXPECT_THAT(error_of([&] { make_cma_es(start, {.sigma = 0}); }), HasSubstr("'sigma'"));
  EXPECT_THAT(error_of([&] { make_cma_es(start, {.population = 1}); }), HasSubstr("'population'"));
  EXPECT_THAT(error_of([&] { make_cma_es(start)->ask(1); }), HasSubstr("two candidates"));
  EXPECT_THAT(error_of([&] { make_one_plus_one(start, {.sigma = -1}); }), HasSubstr("'sigma'"));
  EXPECT_THAT(error_of([&] { make_random_search(start, {.sigma = std::nan("")}); }), HasSubstr("'sigma'"));
  EXPECT_THAT(error_of([&] { make_differential_evolution(start, {.population = 3}); }),
              HasSubstr("'population'"));
  EXPECT_THAT(error_of([&] { make_differential_evolution(start, {.weight = 0}); }), HasSubstr("'weight'"));
  EXPECT_THAT(error_of([&] { make_differential_evolution(start, {.crossover = 2}); }),
              HasSubstr("'crossover'"));
  EXPECT_THAT(error_of([&] { make_cma_es(torch::zeros({2, 2})); }), HasSubstr("[2, 2]"));
  EXPECT_THAT(error_of([&] { make_cma_es(torch::zeros({0})); }), HasSubstr("[0]"));
  EXPECT_THAT(error_of([&] { make_cma_es(point(2, std::nan(""))); }), HasSubstr("finite"));
}

}  // namespace
}  // namespace lockstep
