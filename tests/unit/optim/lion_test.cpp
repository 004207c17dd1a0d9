#include <lockstep/optim.h>
#include <lockstep/schedule.h>

#include "optim/lamb_kernels.h"
#include "optim/optimizers.h"
#include "support/config_error.h"
#include "support/formula.h"

namespace lockstep {
namespace {

using test::error_of;
using test::formula;
using test::same_bits;
using test::trained_formula;
using testing::HasSubstr;
using torch::optim::Optimizer;

void step(Optimizer& optimizer, const std::vector<at::Tensor>& weights, int64_t number) {
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i].mutable_grad() = formula(weights[i].sizes(), 100 * number + static_cast<int64_t>(i))
                                    .to(weights[i].options().requires_grad(false));
  }
  optimizer.step();
}

TEST(Lion, StepsAsItsFormulaSays) {
  auto weight = trained_formula({50});
  const auto optimizer = make_lion({weight}, {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1});
  at::Tensor expected = weight.detach().to(at::kDouble);
  at::Tensor average = at::zeros({50}, at::kDouble);
  for (int64_t number = 0; number < 8; ++number) {
    step(*optimizer, {weight}, number);
    const at::Tensor gradient = weight.grad().to(at::kDouble);
    const at::Tensor update = (0.8 * average + 0.2 * gradient).sign();
    expected = expected * (1 - 0.01 * 0.1) - 0.01 * update;
    average = 0.95 * average + 0.05 * gradient;
    EXPECT_TRUE(at::allclose(weight.detach().to(at::kDouble), expected, 1e-6, 1e-7)) << "step " << number;
  }
}

TEST(Lion, FlatMemoryAndLibTorchsOperationsAgree) {
  auto flat = trained_formula({30, 5});
  // Every second element of a longer tensor: not for the kernel.
  auto sparse = at::zeros({30, 10}).slice(1, 0, 10, 2);
  sparse.copy_(flat.detach());
  sparse.set_requires_grad(true);
  const auto first = make_lion({flat}, {.lr = 0.01, .weight_decay = 0.1});
  const auto second = make_lion({sparse}, {.lr = 0.01, .weight_decay = 0.1});
  for (int64_t number = 0; number < 8; ++number) {
    step(*first, {flat}, number);
    step(*second, {sparse}, number);
  }
  EXPECT_TRUE(at::allclose(flat, sparse, 1e-6, 1e-7));
}

TEST(Lamb, StepsAsItsFormulaSays) {
  const LambOptions options{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1};
  std::vector<at::Tensor> weights{trained_formula({20}), at::zeros({4}).set_requires_grad(true)};
  const auto optimizer = make_lamb(weights, options);
  std::vector<at::Tensor> expected;
  for (const at::Tensor& weight : weights) expected.push_back(weight.detach().to(at::kDouble));
  std::vector<at::Tensor> averages{at::zeros({20}, at::kDouble), at::zeros({4}, at::kDouble)};
  std::vector<at::Tensor> squares{at::zeros({20}, at::kDouble), at::zeros({4}, at::kDouble)};
  for (int64_t number = 1; number <= 6; ++number) {
    step(*optimizer, weights, number);
    const double step_size = 0.02 * std::sqrt(1 - std::pow(0.95, number)) / (1 - std::pow(0.8, number));
    for (size_t i = 0; i < weights.size(); ++i) {
      const at::Tensor gradient = weights[i].grad().to(at::kDouble);
      averages[i] = 0.8 * averages[i] + 0.2 * gradient;
      squares[i] = 0.95 * squares[i] + 0.05 * gradient * gradient;
      const at::Tensor update = averages[i] / (squares[i].sqrt() + 1e-3) + 0.1 * expected[i];
      const double weight_norm = expected[i].norm().item<double>();
      const double ratio =
          weight_norm == 0 ? 1 : std::clamp(weight_norm / update.norm().item<double>(), 0.01, 10.0);
      expected[i] = expected[i] - step_size * ratio * update;
      EXPECT_TRUE(at::allclose(weights[i].detach().to(at::kDouble), expected[i], 1e-5, 1e-7))
          << "step " << number << " parameter " << i;
    }
  }
}

// A flat buffer of two parameters, held by two ranks that meet inside the second.
TEST(Lamb, ShardsAddUpToTheWholeParameters) {
  std::vector<at::Tensor> weights{trained_formula({13}, 1), trained_formula({40}, 2)};
  const auto optimizer = make_lamb(weights, {.lr = 0.02, .weight_decay = 0.1, .eps_inside_sqrt = true});
  const at::Tensor flat = at::cat({weights[0].detach(), weights[1].detach()});
  const at::Tensor average = at::zeros({53});
  const at::Tensor square = at::zeros({53});
  optim::LambRule rule;
  rule.lr = 0.02;
  rule.weight_decay = 0.1;
  rule.eps_inside_sqrt = true;
  const at::Tensor copy = at::zeros({53}, at::kBFloat16);
  for (int64_t number = 1; number <= 5; ++number) {
    step(*optimizer, weights, number);
    rule.step = number;
    const at::Tensor gradient = at::cat({weights[0].grad(), weights[1].grad()}) * 4;
    optim::FlatMemory memory;
    memory.numel = 53;
    memory.parameters = flat.data_ptr<float>();
    memory.state = average.data_ptr<float>();
    memory.second_state = square.data_ptr<float>();
    memory.gradients = gradient.data_ptr();
    memory.gradient_factor = 0.25F;
    memory.copy = copy.data_ptr();
    const optim::FlatMemory first = memory.part(0, 30);
    const optim::FlatMemory second = memory.part(30, 23);
    const auto first_sums = lamb_sums(rule, first, {{0, 13}, {13, 30}});
    const auto second_sums = lamb_sums(rule, second, {{0, 23}});
    const optim::LambSums both{first_sums[1].parameter_squares + second_sums[0].parameter_squares,
                               first_sums[1].update_squares + second_sums[0].update_squares};
    const double ratio = lamb_trust_ratio(rule, both);
    lamb_apply(rule, first, {{0, 13}, {13, 30}}, {lamb_trust_ratio(rule, first_sums[0]), ratio});
    lamb_apply(rule, second, {{0, 23}}, {ratio});
    EXPECT_TRUE(at::allclose(flat, at::cat({weights[0].detach(), weights[1].detach()}), 1e-5, 1e-7))
        << "step " << number;
    EXPECT_TRUE(same_bits(copy, flat.to(at::kBFloat16)));
  }
}

TEST(Lamb, BoundsTheTrustRatio) {
  const optim::LambRule rule;
  EXPECT_EQ(lamb_trust_ratio(rule, {16, 4}), 2);
  EXPECT_EQ(lamb_trust_ratio(rule, {0, 4}), 1);
  EXPECT_EQ(lamb_trust_ratio(rule, {4, 0}), 1);
  EXPECT_EQ(lamb_trust_ratio(rule, {1e6, 1}), 10);
  EXPECT_EQ(lamb_trust_ratio(rule, {1, 1e6}), 0.01);
}

TEST(Lion, GoesThroughTorchSaveAndLoad) {
  const std::vector<std::function<std::unique_ptr<Optimizer>(const at::Tensor&)>> kinds{
      [](const at::Tensor& weight) { return make_lion({weight}, {.lr = 0.01}); },
      [](const at::Tensor& weight) { return make_lamb({weight}, {.lr = 0.01}); }};
  for (const auto& make : kinds) {
    auto first = trained_formula({9});
    const auto saved = make(first);
    step(*saved, {first}, 1);
    std::stringstream stream;
    torch::save(*saved, stream);
    auto second = first.detach().clone().set_requires_grad(true);
    const auto loaded = make(second);
    torch::load(*loaded, stream);
    step(*saved, {first}, 2);
    step(*loaded, {second}, 2);
    EXPECT_TRUE(same_bits(first, second));
  }
}

TEST(Lion, BetasAreMomentum) {
  const auto weight = trained_formula({2});
  const auto lion = make_lion({weight});
  EXPECT_TRUE(set_momentum(*lion, 0.7));
  const auto& options = static_cast<optim::LionGroupOptions&>(lion->param_groups()[0].options());
  EXPECT_EQ(options.betas(), std::make_tuple(0.7, 0.99));
  EXPECT_TRUE(set_betas(*lion, 0.6, 0.8));
  EXPECT_EQ(options.betas(), std::make_tuple(0.6, 0.8));
  EXPECT_TRUE(set_betas(*make_lamb({weight}), 0.6, 0.8));
  torch::optim::SGD sgd({weight}, 0.1);
  EXPECT_FALSE(set_betas(sgd, 0.6, 0.8));
}

TEST(Lion, RefusesOptionsThatMakeNoSense) {
  const auto weight = trained_formula({1});
  EXPECT_THAT(error_of([&] { make_lion({}); }), HasSubstr("'parameters'"));
  EXPECT_THAT(error_of([&] { make_lion({weight}, {.lr = -1}); }), HasSubstr("'lr' of the optimizer Lion"));
  EXPECT_THAT(error_of([&] { make_lion({weight}, {.beta1 = 1.5}); }), HasSubstr("'beta1'"));
  EXPECT_THAT(error_of([&] { make_lion({weight}, {.beta2 = -1}); }), HasSubstr("'beta2'"));
  EXPECT_THAT(error_of([&] { make_lion({weight}, {.weight_decay = NAN}); }), HasSubstr("'weight_decay'"));
  EXPECT_THAT(error_of([&] { make_lamb({}); }), HasSubstr("'parameters'"));
  EXPECT_THAT(error_of([&] { make_lamb({weight}, {.lr = -1}); }), HasSubstr("'lr' of the optimizer Lamb"));
  EXPECT_THAT(error_of([&] { make_lamb({weight}, {.beta1 = 1}); }), HasSubstr("'beta1'"));
  EXPECT_THAT(error_of([&] { make_lamb({weight}, {.beta2 = 1}); }), HasSubstr("'beta2'"));
  EXPECT_THAT(error_of([&] { make_lamb({weight}, {.eps = -1}); }), HasSubstr("'eps'"));
  EXPECT_THAT(error_of([&] { make_lamb({weight}, {.max_coeff = 0.001}); }), HasSubstr("'max_coeff'"));
  EXPECT_THAT(error_of([&] { make_lamb({weight}, {.min_coeff = -1}); }), HasSubstr("'min_coeff'"));
}

}  // namespace
}  // namespace lockstep
