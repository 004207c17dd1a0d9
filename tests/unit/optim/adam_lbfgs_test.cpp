#include <lockstep/error.h>
#include <lockstep/optim.h>
#include <lockstep/schedule.h>

#include <sstream>

#include "support/config_error.h"
#include "support/formula.h"

namespace lockstep {
namespace {

using test::error_of;
using testing::HasSubstr;

// Rosenbrock's valley in two dimensions.
struct Valley {
  at::Tensor x = torch::tensor({-1.2, 1.0}, torch::dtype(torch::kDouble)).set_requires_grad(true);

  at::Tensor loss() const { return 100 * torch::pow(x[1] - x[0] * x[0], 2) + torch::pow(1 - x[0], 2); }
  torch::optim::Optimizer::LossClosure closure(torch::optim::Optimizer& optimizer) const {
    return [this, &optimizer] {
      const torch::AutoGradMode grad(true);
      optimizer.zero_grad();
      auto value = loss();
      value.backward();
      return value;
    };
  }
};

TEST(AdamLbfgs, IsAdamThenLbfgs) {
  Valley hybrid;
  Valley plain;
  auto optimizer = make_adam_lbfgs({hybrid.x}, {.switch_step = 5});
  torch::optim::Adam adam({plain.x}, torch::optim::AdamOptions(1e-2));
  torch::optim::LBFGS lbfgs({plain.x}, torch::optim::LBFGSOptions(1));
  for (int step = 0; step < 9; ++step) {
    optimizer->step(hybrid.closure(*optimizer));
    if (step < 5) {
      adam.step(plain.closure(adam));
    } else {
      lbfgs.step(plain.closure(lbfgs));
    }
    ASSERT_TRUE(test::same_bits(hybrid.x, plain.x)) << "step " << step;
  }
}

TEST(AdamLbfgs, FindsTheMinimumThatAdamIsFarFrom) {
  Valley valley;
  auto optimizer = make_adam_lbfgs({valley.x}, {.switch_step = 20, .strong_wolfe = true});
  for (int step = 0; step < 20; ++step) optimizer->step(valley.closure(*optimizer));
  EXPECT_GT(valley.loss().item<double>(), 1.0);
  for (int step = 0; step < 5; ++step) optimizer->step(valley.closure(*optimizer));
  EXPECT_LT(valley.loss().item<double>(), 1e-10);
}

TEST(AdamLbfgs, ItsRateReachesBothHalves) {
  Valley scheduled;
  Valley plain;
  auto optimizer = make_adam_lbfgs({scheduled.x}, {.switch_step = 3, .lbfgs_max_iter = 2});
  EXPECT_EQ(learning_rates(*optimizer), std::vector<double>{1e-2});
  ScheduledLearningRate rate(*optimizer, step_decay({.every = 1, .gamma = 0.5}));
  torch::optim::Adam adam({plain.x}, torch::optim::AdamOptions(1e-2));
  torch::optim::LBFGS lbfgs({plain.x}, torch::optim::LBFGSOptions(1).max_iter(2));
  for (int step = 0; step < 6; ++step) {
    optimizer->step(scheduled.closure(*optimizer));
    const double factor = std::pow(0.5, step);
    if (step < 3) {
      set_learning_rates(adam, {1e-2 * factor});
      adam.step(plain.closure(adam));
    } else {
      set_learning_rates(lbfgs, {factor});
      lbfgs.step(plain.closure(lbfgs));
    }
    ASSERT_TRUE(test::same_bits(scheduled.x, plain.x)) << "step " << step;
    rate.advance();
  }
}

TEST(AdamLbfgs, NeedsAClosureAfterTheSwitch) {
  Valley valley;
  auto optimizer = make_adam_lbfgs({valley.x}, {.switch_step = 1});
  valley.loss().backward();
  optimizer->step();
  EXPECT_THAT(error_of([&] { optimizer->step(); }), HasSubstr("from step 1 on"));
}

TEST(AdamLbfgs, SaysHowItIsSaved) {
  Valley valley;
  auto optimizer = make_adam_lbfgs({valley.x});
  std::stringstream stream;
  EXPECT_THAT(error_of([&] { torch::save(*optimizer, stream); }), HasSubstr("optimizer_state()"));
}

TEST(AdamLbfgs, BadArgumentsAreNamed) {
  const auto make = [](const AdamLbfgsOptions& options) {
    return error_of([&] { make_adam_lbfgs({torch::zeros({1})}, options); });
  };
  EXPECT_THAT(make({.switch_step = -1}), HasSubstr("'switch_step'"));
  EXPECT_THAT(make({.adam_lr = 0}), HasSubstr("'adam_lr'"));
  EXPECT_THAT(make({.adam_beta2 = 1}), HasSubstr("'adam_beta2'"));
  EXPECT_THAT(make({.lbfgs_lr = -1}), HasSubstr("'lbfgs_lr'"));
  EXPECT_THAT(make({.lbfgs_max_iter = 0}), HasSubstr("'lbfgs_max_iter'"));
  EXPECT_THAT(error_of([] { make_adam_lbfgs({}); }), HasSubstr("'parameters'"));
}

}  // namespace
}  // namespace lockstep
