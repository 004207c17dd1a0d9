#include "optim/flat_step.h"
#include "optim/optimizer_state.h"

#include <gtest/gtest.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include "support/formula.h"

namespace lockstep::optim {
namespace {

using test::formula;
using test::same_bits;

constexpr int64_t kNumel = 1000;

// The optimizer's own steps against ours, each with an optimizer of its own.
void expect_same_steps(const std::function<std::unique_ptr<torch::optim::Optimizer>(at::Tensor)>& make,
                       double tolerance) {
  const at::Tensor own = formula({kNumel}, 1);
  const at::Tensor flat = own.clone();
  const auto expected = make(own);
  const auto optimizer = make(flat);
  at::Tensor copy = at::empty({kNumel}, at::kBFloat16);
  for (int step = 0; step < 4; ++step) {
    const at::Tensor gradient = formula({kNumel}, 10 + step);
    own.mutable_grad() = gradient;
    expected->step();
    ASSERT_TRUE(
        step_one_flat(*optimizer, optimizer->param_groups()[0].options(), flat, gradient, {.copy = copy}));
    EXPECT_TRUE(same_bits(copy, flat.to(at::kBFloat16)));
    if (tolerance == 0) {
      EXPECT_TRUE(same_bits(flat, own));
    } else {
      EXPECT_TRUE(torch::allclose(flat, own, tolerance, tolerance));
    }
  }
  // The state is the optimizer's own: either can go on from the other's.
  const OptimizerState state = optimizer_state(*optimizer, {{"flat", flat}});
  load_optimizer_state(*expected, {{"flat", own}}, state);
  const auto tensors = state_tensors(*optimizer, flat);
  EXPECT_EQ(tensors.size(), state.tensors.size());
  EXPECT_EQ(static_cast<int>(tensors.size()),
            max_state_tensors(*optimizer, optimizer->param_groups()[0].options()));
  for (const at::Tensor& tensor : tensors) EXPECT_EQ(tensor.numel(), kNumel);
}

TEST(FlatOptimizer, StepsAsTheClassesOfTheKernels) {
  expect_same_steps([](at::Tensor p) { return make_cpu_adam({p}, {.weight_decay = 0.1}); }, 0);
  expect_same_steps([](at::Tensor p) { return make_cpu_adam({p}, {.adam_w_mode = false}); }, 0);
  expect_same_steps([](at::Tensor p) { return make_cpu_adagrad({p}, {.initial_accumulator_value = 0.1}); },
                    0);
  expect_same_steps([](at::Tensor p) { return make_lion({p}, {.weight_decay = 0.1}); }, 0);
}

TEST(FlatOptimizer, StepsAsLibTorchsToRounding) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): names of one function
  constexpr double kRounding = 1e-6;
  expect_same_steps([](at::Tensor p) { return std::make_unique<Adam>(std::vector{p}, AdamOptions(0.01)); },
                    kRounding);
  expect_same_steps([](at::Tensor p) { return std::make_unique<AdamW>(std::vector{p}, AdamWOptions(0.01)); },
                    kRounding);
  expect_same_steps(
      [](at::Tensor p) { return std::make_unique<Adagrad>(std::vector{p}, AdagradOptions(0.01)); },
      kRounding);
  expect_same_steps(
      [](at::Tensor p) {
        return std::make_unique<SGD>(std::vector{p},
                                     SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.1));
      },
      kRounding);
  expect_same_steps([](at::Tensor p) { return std::make_unique<SGD>(std::vector{p}, SGDOptions(0.1)); },
                    kRounding);
}

TEST(FlatOptimizer, LeavesAloneWhatItDoesNotKnow) {
  const at::Tensor parameter = formula({kNumel}, 1);
  const at::Tensor before = parameter.clone();
  const auto refuses = [&](torch::optim::Optimizer& optimizer, const at::Tensor& of) {
    const bool stepped =
        step_one_flat(optimizer, optimizer.param_groups()[0].options(), of, at::ones_like(of));
    return !stepped && optimizer.state().empty();
  };
  torch::optim::RMSprop rmsprop({parameter}, torch::optim::RMSpropOptions(0.1).momentum(0.9));
  EXPECT_TRUE(refuses(rmsprop, parameter));
  EXPECT_EQ(max_state_tensors(rmsprop, rmsprop.param_groups()[0].options()), 2);
  torch::optim::Adam amsgrad({parameter}, torch::optim::AdamOptions(0.1).amsgrad(true));
  EXPECT_TRUE(refuses(amsgrad, parameter));
  EXPECT_EQ(max_state_tensors(amsgrad, amsgrad.param_groups()[0].options()), 3);
  const auto exact = make_python_adam({parameter}, {});
  EXPECT_TRUE(refuses(*exact, parameter));
  torch::optim::LBFGS lbfgs({parameter});
  EXPECT_TRUE(refuses(lbfgs, parameter));
  EXPECT_EQ(max_state_tensors(lbfgs, lbfgs.param_groups()[0].options()), -1);
  const at::Tensor wide = parameter.to(at::kDouble);
  torch::optim::Adam adam({wide}, torch::optim::AdamOptions(0.1));
  EXPECT_TRUE(refuses(adam, wide));
  EXPECT_TRUE(same_bits(parameter, before));
}

}  // namespace
}  // namespace lockstep::optim
