#include <lockstep/optim.h>

#include "optim/optimizers.h"
#include "support/complex_steps.h"
#include "support/config_error.h"
#include "support/formula.h"

namespace lockstep {
namespace {

using test::error_of;
using testing::HasSubstr;

TEST(Adadelta, StepsComplexParametersAsPairs) {
  test::expect_steps_as_pairs([](const at::Tensor& weight) { return make_adadelta({weight}); });
}

TEST(Adadelta, StepsAsItsFormulaSays) {
  auto weight = torch::tensor({1.0, -2.0}, torch::kDouble).set_requires_grad(true);
  const auto optimizer = make_adadelta({weight}, {.lr = 0.5, .rho = 0.8, .eps = 1e-3, .weight_decay = 0.1});
  std::vector<double> expected{1.0, -2.0};
  std::vector<double> square(2, 0.0);
  std::vector<double> accumulated(2, 0.0);
  for (int step = 0; step < 5; ++step) {
    optimizer->zero_grad();
    (weight * weight).sum().backward();
    optimizer->step();
    for (size_t i = 0; i < 2; ++i) {
      const double gradient = 2 * expected[i] + 0.1 * expected[i];
      square[i] = 0.8 * square[i] + 0.2 * gradient * gradient;
      const double delta = std::sqrt(accumulated[i] + 1e-3) / std::sqrt(square[i] + 1e-3) * gradient;
      accumulated[i] = 0.8 * accumulated[i] + 0.2 * delta * delta;
      expected[i] -= 0.5 * delta;
      EXPECT_NEAR(weight[static_cast<int64_t>(i)].item<double>(), expected[i], 1e-12) << "step " << step;
    }
  }
}

TEST(Adadelta, PassesOverParametersWithoutGradient) {
  auto used = torch::ones({2}, torch::requires_grad());
  auto unused = torch::ones({2}, torch::requires_grad());
  const auto optimizer = make_adadelta({used, unused});
  used.sum().backward();
  optimizer->step();
  EXPECT_FALSE(torch::equal(used, torch::ones({2})));
  EXPECT_TRUE(torch::equal(unused, torch::ones({2})));
  EXPECT_EQ(optimizer->state().size(), 1);
}

TEST(Adadelta, ReturnsTheLossOfAClosure) {
  auto weight = torch::full({1}, 3.0, torch::requires_grad());
  const auto optimizer = make_adadelta({weight});
  const at::Tensor loss = optimizer->step([&] {
    optimizer->zero_grad();
    auto value = (weight * 2).sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 6);
  EXPECT_NE(weight.item<float>(), 3);
}

TEST(Adadelta, GoesThroughTorchSaveAndLoad) {
  const auto start = test::formula({3}, 1);
  const auto train = [](const at::Tensor& weight, torch::optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    weight.square().sum().backward();
    optimizer.step();
  };
  auto first = start.clone().set_requires_grad(true);
  const auto saved = make_adadelta({first}, {.rho = 0.7});
  train(first, *saved);
  std::stringstream stream;
  torch::save(*saved, stream);
  auto second = first.detach().clone().set_requires_grad(true);
  const auto loaded = make_adadelta({second});
  torch::load(*loaded, stream);
  train(first, *saved);
  train(second, *loaded);
  EXPECT_TRUE(test::same_bits(first, second));
}

TEST(Adadelta, RefusesOptionsThatMakeNoSense) {
  const auto weight = torch::ones({1}, torch::requires_grad());
  EXPECT_THAT(error_of([&] { make_adadelta({}); }), HasSubstr("'parameters'"));
  EXPECT_THAT(error_of([&] { make_adadelta({weight}, {.lr = -1}); }),
              HasSubstr("'lr' of the optimizer Adadelta"));
  EXPECT_THAT(error_of([&] { make_adadelta({weight}, {.rho = 1.5}); }), HasSubstr("between 0 and 1: 1.5"));
  EXPECT_THAT(error_of([&] { make_adadelta({weight}, {.eps = -1}); }), HasSubstr("'eps'"));
  EXPECT_THAT(error_of([&] { make_adadelta({weight}, {.weight_decay = NAN}); }), HasSubstr("'weight_decay'"));
}

}  // namespace
}  // namespace lockstep
