#include <lockstep/optim.h>

#include "support/complex_steps.h"
#include "support/config_error.h"
#include "support/formula.h"

namespace lockstep {
namespace {

using test::error_of;
using testing::HasSubstr;

void train_with_changing_loss(const at::Tensor& weight, torch::optim::Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    (weight * weight * test::formula({40}, step)).sum().backward();
    optimizer.step();
  }
}

TEST(PythonAdam, IsTorchsAdamToRounding) {
  for (const bool amsgrad : {false, true}) {
    auto ours = test::formula({40}, 99).set_requires_grad(true);
    auto torchs = test::formula({40}, 99).set_requires_grad(true);
    train_with_changing_loss(
        ours, *make_python_adam({ours}, {.lr = 0.01, .weight_decay = 0.1, .amsgrad = amsgrad}), 20);
    torch::optim::Adam adam({torchs}, torch::optim::AdamOptions(0.01).weight_decay(0.1).amsgrad(amsgrad));
    train_with_changing_loss(torchs, adam, 20);
    EXPECT_TRUE(torch::allclose(ours, torchs, 1e-5, 1e-6));
  }
}

TEST(PythonAdam, GoesOnFromAStateOfTorchsAdam) {
  auto first = test::formula({40}, 99).set_requires_grad(true);
  torch::optim::Adam before({first}, 0.01);
  train_with_changing_loss(first, before, 3);
  auto second = first.detach().clone().set_requires_grad(true);
  const auto after = make_python_adam({second}, {.lr = 7});
  load_optimizer_state(*after, {{"weight", second}}, optimizer_state(before, {{"weight", first}}));
  train_with_changing_loss(first, before, 3);
  train_with_changing_loss(second, *after, 3);
  EXPECT_TRUE(torch::allclose(first, second, 1e-5, 1e-6));
  EXPECT_EQ(optimizer_class(*after), "Adam");
}

// Not by complex squares, as torch::optim::Adam does.
TEST(PythonAdam, StepsComplexParametersAsPairs) {
  test::expect_steps_as_pairs(
      [](const at::Tensor& weight) { return make_python_adam({weight}, {.lr = 0.01, .amsgrad = true}); });
  const auto weight = torch::complex(test::formula({4}, 3), test::formula({4}, 4)).set_requires_grad(true);
  const auto optimizer = make_python_adam({weight});
  weight.mutable_grad() = weight.detach().clone();
  optimizer->step();
  EXPECT_EQ(optimizer_state(*optimizer, {{"weight", weight}}).tensors[0].second.scalar_type(),
            at::kComplexFloat);
}

TEST(PythonAdam, RefusesOptionsThatMakeNoSense) {
  const auto weight = torch::ones({1}, torch::requires_grad());
  EXPECT_THAT(error_of([&] { make_python_adam({}); }), HasSubstr("'parameters'"));
  EXPECT_THAT(error_of([&] { make_python_adam({weight}, {.lr = -1}); }), HasSubstr("'lr'"));
  EXPECT_THAT(error_of([&] { make_python_adam({weight}, {.beta1 = 1}); }), HasSubstr("'beta1'"));
  EXPECT_THAT(error_of([&] { make_python_adam({weight}, {.beta2 = -0.1}); }), HasSubstr("'beta2'"));
  EXPECT_THAT(error_of([&] { make_python_adam({weight}, {.weight_decay = -1}); }),
              HasSubstr("'weight_decay'"));
}

}  // namespace
}  // namespace lockstep
