#include "optim/fused_step.h"

#include <lockstep/optim.h>

namespace lockstep::optim {
namespace {

using Parameters = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&)>;

Parameters make_parameters() {
  torch::manual_seed(3);
  Parameters parameters;
  for (const int64_t size : {7, 1, 33}) parameters.push_back(torch::randn({size, 3}).requires_grad_());
  return parameters;
}

void set_gradients(const Parameters& parameters, int step) {
  torch::manual_seed(100 + step);
  for (const at::Tensor& parameter : parameters) parameter.mutable_grad() = torch::randn_like(parameter);
}

NamedTensors named(const Parameters& parameters) {
  NamedTensors result;
  for (size_t i = 0; i < parameters.size(); ++i) result.emplace_back(std::to_string(i), parameters[i]);
  return result;
}

class FusedKindsTest : public testing::TestWithParam<std::pair<const char*, Make>> {};

// The same gradients for both; the learning rate changes on the way, a step is skipped.
TEST_P(FusedKindsTest, DoesWhatTheOptimizerDoes) {
  const Make& make = GetParam().second;
  const Parameters plain = make_parameters(), fused = make_parameters();
  const auto one = make(plain), other = make(fused);
  const auto step = FusedStep::make(*other);
  ASSERT_TRUE(step);
  for (int i = 0; i < 20; ++i) {
    for (const auto* optimizer : {one.get(), other.get()}) {
      for (auto& group : const_cast<torch::optim::Optimizer*>(optimizer)->param_groups()) {
        group.options().set_lr(0.01 / (1 + i / 5));
      }
    }
    const bool skip = i == 0 || i == 7;
    set_gradients(plain, i);
    set_gradients(fused, i);
    if (!skip) one->step();
    step->prepare();
    step->launch(torch::full({1}, skip ? 1.0f : 0.0f));
    step->count();
  }
  step->fetch_counts();
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(torch::allclose(plain[i], fused[i], 1e-5, 1e-6)) << i;
  }
  // Momenta and counts are in the optimizer's own state.
  const OptimizerState expected = optimizer_state(*one, named(plain));
  const OptimizerState actual = optimizer_state(*other, named(fused));
  EXPECT_EQ(actual.values, expected.values);
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (size_t i = 0; i < expected.tensors.size(); ++i) {
    const auto& [name, tensor] = expected.tensors[i];
    EXPECT_EQ(actual.tensors[i].first, name);
    EXPECT_TRUE(torch::allclose(actual.tensors[i].second, tensor, 1e-5, 1e-6)) << name;
  }
}

template <typename Optimizer, typename Options>
Make maker(Options options) {
  return [options](const Parameters& parameters) { return std::make_unique<Optimizer>(parameters, options); };
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, FusedKindsTest,
    testing::Values(
        std::pair("sgd", maker<torch::optim::SGD>(torch::optim::SGDOptions(0.01))),
        std::pair("momentum",
                  maker<torch::optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(1e-2))),
        std::pair("nesterov",
                  maker<torch::optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(true))),
        std::pair("adam", maker<torch::optim::Adam>(torch::optim::AdamOptions(0.01).weight_decay(1e-2))),
        std::pair("amsgrad", maker<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true))),
        std::pair("adamw", maker<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01)))),
    [](const auto& info) { return info.param.first; });

TEST(FusedStepTest, LeavesToTheOptimizerWhatTheKernelsCannotDo) {
  const Parameters parameters = make_parameters();
  torch::optim::SGD damped(parameters, torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.5));
  EXPECT_FALSE(FusedStep::make(damped));
  EXPECT_THAT(FusedStep::objection(damped), testing::HasSubstr("set dampening to 0"));
  torch::optim::RMSprop rmsprop(parameters, torch::optim::RMSpropOptions(0.1));
  EXPECT_FALSE(FusedStep::make(rmsprop));
  EXPECT_THAT(FusedStep::objection(rmsprop), testing::HasSubstr("its class is RMSprop, and there are fused"));
  torch::optim::SGD exact({torch::ones({2}, torch::kDouble).requires_grad_()}, 0.1);
  EXPECT_FALSE(FusedStep::make(exact));
  EXPECT_THAT(FusedStep::objection(exact), testing::HasSubstr("set dtype to float32"));
  torch::optim::SGD plain(parameters, 0.1);
  EXPECT_EQ(FusedStep::objection(plain), "");
}

// A parameter that gets its first gradient late has a count of its own.
TEST(FusedStepTest, CountsEachParametersSteps) {
  const Parameters plain = make_parameters(), fused = make_parameters();
  torch::optim::Adam one(plain, torch::optim::AdamOptions(0.01));
  torch::optim::Adam other(fused, torch::optim::AdamOptions(0.01));
  const auto step = FusedStep::make(other);
  for (int i = 0; i < 6; ++i) {
    set_gradients(plain, i);
    set_gradients(fused, i);
    if (i < 3) plain[1].mutable_grad() = fused[1].mutable_grad() = at::Tensor();
    one.step();
    step->prepare();
    step->launch({});
    step->count();
  }
  EXPECT_TRUE(torch::allclose(plain[1], fused[1], 1e-5, 1e-6));
  EXPECT_EQ(optimizer_state(other, named(fused)).values, optimizer_state(one, named(plain)).values);
}

TEST(FusedStepTest, TellsWhatARecordHasFixed) {
  const Parameters parameters = make_parameters();
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto step = FusedStep::make(sgd);
  const std::vector<double> before = step->fixed_options();
  auto& options = static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options());
  options.lr(0.05);
  EXPECT_EQ(step->fixed_options(), before);
  options.momentum(0.8);
  EXPECT_NE(step->fixed_options(), before);
}

}  // namespace
}  // namespace lockstep::optim
