#include <lockstep/error.h>
#include <lockstep/optim.h>

#include <nlohmann/json.hpp>

#include "optim/optimizers.h"
#include "support/config_error.h"
#include "support/formula.h"

namespace lockstep {
namespace {

using test::error_of;
using testing::HasSubstr;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

constexpr int kSteps = 12;
constexpr int kLateStep = 5;

// A small net: one parameter has no gradient before kLateStep, one is frozen.
struct Net {
  NamedTensors parameters;

  Net() {
    const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes{
        {"0.weight", {4, 3}}, {"0.bias", {4}}, {"2.weight", {2, 4}}, {"late", {2}}, {"frozen", {2}}};
    int64_t salt = 0;
    for (const auto& [name, shape] : shapes) {
      auto tensor = test::formula(shape, salt++);
      parameters.emplace_back(name, tensor.set_requires_grad(name != "frozen"));
    }
  }

  at::Tensor operator[](const std::string& name) const {
    for (const auto& [key, tensor] : parameters) {
      if (key == name) return tensor;
    }
    throw std::out_of_range(name);
  }

  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> result;
    for (const auto& item : parameters) result.push_back(item.second);
    return result;
  }

  at::Tensor loss(int step) const {
    const auto x = test::formula({8, 3}, 100 + step);
    const auto y = test::formula({8, 2}, 200 + step);
    auto out = torch::tanh(torch::linear(x, (*this)["0.weight"], (*this)["0.bias"]));
    out = torch::linear(out, (*this)["2.weight"]) + (*this)["frozen"];
    if (step >= kLateStep) out = out + (*this)["late"];
    return torch::mse_loss(out, y);
  }

  void copy_from(const Net& other) {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].second.copy_(other.parameters[i].second);
  }
};

void train(const Net& net, Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.step([&] {
      const torch::AutoGradMode grad(true);
      optimizer.zero_grad();
      auto loss = net.loss(step);
      loss.backward();
      return loss;
    });
  }
}

// Two groups with rates of their own.
template <typename OptimizerType, typename Options>
std::unique_ptr<Optimizer> two_groups(const Net& net, const Options& options, double lr_factor) {
  auto first = options;
  auto second = options;
  first.lr(options.lr() * lr_factor);
  second.lr(options.lr() * lr_factor / 2);
  const auto all = net.tensors();
  return std::make_unique<OptimizerType>(
      std::vector<OptimizerParamGroup>{
          OptimizerParamGroup({all[0], all[1]}, std::make_unique<Options>(first)),
          OptimizerParamGroup({all[2], all[3], all[4]}, std::make_unique<Options>(second))},
      options);
}

// A class that is not known to the library, with LibTorch's own way of saving.
class OwnAdam : public torch::optim::Adam {
 public:
  using Adam::Adam;
};

class Forgetful : public Optimizer {
 public:
  explicit Forgetful(const std::vector<at::Tensor>& parameters)
      : Optimizer(parameters, std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure closure = nullptr) override { return closure ? closure() : at::Tensor(); }
};

struct Case {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(const Net&, double lr_factor)> make;
};

void PrintTo(const Case& value, std::ostream* stream) { *stream << value.name; }

template <typename OptimizerType, typename Options>
Case grouped(std::string name, Options options) {
  return {std::move(name), [options](const Net& net, double lr_factor) {
            return two_groups<OptimizerType>(net, options, lr_factor);
          }};
}

std::vector<Case> cases() {
  using namespace torch::optim;  // NOLINT
  const auto lbfgs = [](LBFGSOptions options) {
    return [options](const Net& net, double lr_factor) {
      auto own = options;
      return std::make_unique<LBFGS>(net.tensors(), own.lr(options.lr() * lr_factor));
    };
  };
  return {
      grouped<SGD>("Sgd", SGDOptions(0.1)),
      grouped<SGD>("SgdMomentum", SGDOptions(0.1).momentum(0.9).dampening(0.1)),
      grouped<SGD>("SgdNesterov", SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01)),
      grouped<Adam>("Adam", AdamOptions(0.05)),
      grouped<Adam>("AdamAmsgrad", AdamOptions(0.05).amsgrad(true).weight_decay(0.01).betas({0.8, 0.99})),
      grouped<optim::PythonAdam>("PythonAdam", AdamOptions(0.05)),
      grouped<optim::PythonAdam>("PythonAdamAmsgrad", AdamOptions(0.05).amsgrad(true).weight_decay(0.01)),
      grouped<AdamW>("AdamW", AdamWOptions(0.05)),
      grouped<AdamW>("AdamWAmsgrad", AdamWOptions(0.05).amsgrad(true).weight_decay(0.1)),
      grouped<Adagrad>("Adagrad", AdagradOptions(0.1)),
      grouped<Adagrad>("AdagradDecay",
                       AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.01).initial_accumulator_value(0.1)),
      grouped<RMSprop>("RmsProp", RMSpropOptions(0.01)),
      grouped<RMSprop>("RmsPropCentered",
                       RMSpropOptions(0.01).centered(true).momentum(0.9).weight_decay(0.01).alpha(0.9)),
      grouped<optim::Adadelta>("Adadelta", optim::AdadeltaGroupOptions(1.0)),
      grouped<optim::Adadelta>("AdadeltaDecay",
                               optim::AdadeltaGroupOptions(0.5).rho(0.8).eps(1e-4).weight_decay(0.01)),
      grouped<optim::CpuAdam>("CpuAdam", AdamOptions(0.05).weight_decay(0.01)),
      grouped<optim::CpuAdamW>("CpuAdamW", AdamWOptions(0.05).weight_decay(0.1)),
      grouped<optim::CpuAdagrad>("CpuAdagrad", AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.01)),
      grouped<optim::Lion>("Lion", optim::LionGroupOptions(0.01).betas({0.8, 0.9}).weight_decay(0.1)),
      grouped<optim::Lamb>("Lamb", optim::LambGroupOptions(0.01).weight_decay(0.1).eps(1e-6).max_coeff(5)),
      {"Lbfgs", lbfgs(LBFGSOptions(0.5).max_iter(3))},
      {"LbfgsShortHistory", lbfgs(LBFGSOptions(0.5).max_iter(2).history_size(3))},
      {"LbfgsWolfe", lbfgs(LBFGSOptions(1).max_iter(4).line_search_fn("strong_wolfe"))},
      {"AdamLbfgs",
       [](const Net& net, double lr_factor) {
         auto optimizer = make_adam_lbfgs(net.tensors(), {.switch_step = 7, .lbfgs_max_iter = 3});
         optimizer->param_groups()[0].options().set_lr(0.01 * lr_factor);
         return optimizer;
       }},
      grouped<OwnAdam>("OtherClass", AdamOptions(0.05).amsgrad(true)),
  };
}

// As a checkpoint does: nothing shared, numbers by way of text.
OptimizerState snapshot(const Optimizer& optimizer, const Net& net) {
  OptimizerState state = optimizer_state(optimizer, net.parameters);
  for (auto& item : state.tensors) item.second = item.second.detach().clone();
  return state;
}

class OptimizerStateOf : public testing::TestWithParam<Case> {};

TEST_P(OptimizerStateOf, GoesOnBitForBit) {
  Net straight;
  auto optimizer = GetParam().make(straight, 1);
  train(straight, *optimizer, 0, kSteps);
  for (int stop : {0, 1, 4, 6, 7, 9}) {
    Net before;
    auto first = GetParam().make(before, 1);
    train(before, *first, 0, stop);
    const OptimizerState state = snapshot(*first, before);
    Net after;
    after.copy_from(before);
    auto second = GetParam().make(after, 7);  // with rates that must not count
    load_optimizer_state(*second, after.parameters, state);
    train(before, *first, stop, stop + 1);  // what was loaded is not shared with it
    train(after, *second, stop, kSteps);
    for (size_t i = 0; i < straight.parameters.size(); ++i) {
      EXPECT_TRUE(test::same_bits(after.parameters[i].second, straight.parameters[i].second))
          << straight.parameters[i].first << ", stopped at " << stop;
    }
  }
}

TEST_P(OptimizerStateOf, IsTheSameAfterLoading) {
  Net net;
  auto optimizer = GetParam().make(net, 1);
  train(net, *optimizer, 0, 9);
  const OptimizerState state = snapshot(*optimizer, net);
  Net other;
  auto fresh = GetParam().make(other, 3);
  load_optimizer_state(*fresh, other.parameters, state);
  const OptimizerState again = snapshot(*fresh, other);
  EXPECT_EQ(nlohmann::json::parse(again.values), nlohmann::json::parse(state.values));
  ASSERT_EQ(again.tensors.size(), state.tensors.size());
  if (!state.tensors.empty() && state.tensors[0].first == "/archive")
    return;  // holds addresses: not comparable
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    EXPECT_EQ(again.tensors[i].first, state.tensors[i].first);
    EXPECT_TRUE(test::same_bits(again.tensors[i].second, state.tensors[i].second)) << state.tensors[i].first;
  }
}

INSTANTIATE_TEST_SUITE_P(Classes, OptimizerStateOf, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

std::vector<std::string> names_in(const OptimizerState& state) {
  std::vector<std::string> names;
  for (const auto& item : state.tensors) names.push_back(item.first);
  return names;
}

TEST(OptimizerState, IsKeyedByTheNamesOfParameters) {
  Net net;
  auto optimizer = two_groups<torch::optim::Adam>(net, torch::optim::AdamOptions(0.05), 1);
  train(net, *optimizer, 0, 3);
  const auto state = optimizer_state(*optimizer, net.parameters);
  EXPECT_THAT(names_in(state),
              testing::ElementsAre("0.weight/exp_avg", "0.weight/exp_avg_sq", "0.bias/exp_avg",
                                   "0.bias/exp_avg_sq", "2.weight/exp_avg", "2.weight/exp_avg_sq"));
  const auto values = nlohmann::json::parse(state.values);
  EXPECT_EQ(values["class"], "Adam");
  EXPECT_EQ(values["groups"][1]["parameters"], nlohmann::json({"2.weight", "late", "frozen"}));
  EXPECT_EQ(values["groups"][1]["options"]["lr"], 0.025);
  EXPECT_EQ(values["state"]["0.bias"]["step"], 3);
  EXPECT_FALSE(values["state"].contains("late")) << "it has had no gradient";
}

TEST(OptimizerState, WhatDoesNotFitIsNamedAndChangesNothing) {
  Net net;
  auto optimizer = two_groups<torch::optim::Adam>(net, torch::optim::AdamOptions(0.05), 1);
  train(net, *optimizer, 0, 3);
  const OptimizerState good = snapshot(*optimizer, net);

  Net target;
  auto adam = two_groups<torch::optim::Adam>(target, torch::optim::AdamOptions(0.01), 1);
  train(target, *adam, 0, 2);
  const auto load = [&](const OptimizerState& state) {
    return error_of([&] { load_optimizer_state(*adam, target.parameters, state); });
  };
  const auto tensor_of = [](OptimizerState& state, const std::string& name) -> at::Tensor& {
    for (auto& item : state.tensors) {
      if (item.first == name) return item.second;
    }
    throw std::out_of_range(name);
  };
  const OptimizerState untouched = snapshot(*adam, target);

  auto wrong = good;
  tensor_of(wrong, "2.weight/exp_avg_sq") = torch::zeros({2, 5});
  EXPECT_THAT(load(wrong), HasSubstr("exp_avg_sq of 2.weight is Float [2, 5] there and Float [2, 4] here"));
  wrong = good;
  tensor_of(wrong, "0.bias/exp_avg") = torch::zeros({4}, torch::kDouble);
  EXPECT_THAT(load(wrong), HasSubstr("exp_avg of 0.bias is Double [4] there"));
  wrong = good;
  wrong.tensors.pop_back();
  EXPECT_THAT(load(wrong), HasSubstr("missing: 2.weight/exp_avg_sq"));
  wrong = good;
  wrong.tensors.emplace_back("3.weight/exp_avg", torch::zeros({2}));
  EXPECT_THAT(load(wrong), HasSubstr("belongs nowhere: 3.weight/exp_avg"));
  wrong = good;
  wrong.values.resize(wrong.values.size() / 2);
  EXPECT_THAT(load(wrong), HasSubstr("cannot be read"));
  wrong = good;
  wrong.values = R"({"class": "Adam", "groups": [], "state": {}})";
  EXPECT_THAT(load(wrong), HasSubstr("0 there, 2 here"));

  torch::optim::SGD sgd(target.tensors(), 0.1);
  EXPECT_THAT(error_of([&] { load_optimizer_state(sgd, target.parameters, good); }),
              HasSubstr("Adam there, SGD here"));
  torch::optim::Adam one_group(target.tensors(), 0.1);
  EXPECT_THAT(error_of([&] { load_optimizer_state(one_group, target.parameters, good); }),
              HasSubstr("2 there, 1 here"));
  auto renamed = target.parameters;
  renamed[1].first = "0.offset";
  EXPECT_THAT(
      error_of([&] { load_optimizer_state(*adam, renamed, good); }),
      HasSubstr(
          "parameter group 0 of the saved optimizer has other parameters: 0.bias there, 0.offset here"));
  renamed.erase(renamed.begin());
  EXPECT_THAT(error_of([&] { optimizer_state(*adam, renamed); }), HasSubstr("[4, 3]"));

  const OptimizerState after = snapshot(*adam, target);
  EXPECT_EQ(after.values, untouched.values);
  for (size_t i = 0; i < after.tensors.size(); ++i) {
    EXPECT_TRUE(test::same_bits(after.tensors[i].second, untouched.tensors[i].second));
  }
}

// A replicated optimizer keeps its state of 16-bit parameters in 16 bit, a sharded one in float32.
TEST(OptimizerState, GoesOnInTheDtypeOfTheParameters) {
  for (const auto& [from, to] : {std::pair(at::kFloat, at::kBFloat16), std::pair(at::kBFloat16, at::kFloat),
                                 std::pair(at::kFloat, at::kHalf), std::pair(at::kHalf, at::kFloat)}) {
    const auto parameter_of = [](at::ScalarType dtype) {
      return NamedTensors{{"w", test::formula({5, 3}, 1).to(dtype).set_requires_grad(true)}};
    };
    const NamedTensors saved = parameter_of(from);
    torch::optim::Adam first({saved[0].second}, torch::optim::AdamOptions(0.1));
    saved[0].second.mutable_grad() = test::formula({5, 3}, 2).to(from);
    first.step();
    const OptimizerState state = optimizer_state(first, saved);

    const NamedTensors own = parameter_of(to);
    torch::optim::Adam second({own[0].second}, torch::optim::AdamOptions(0.3));
    load_optimizer_state(second, own, state);
    const OptimizerState loaded = optimizer_state(second, own);
    ASSERT_EQ(loaded.tensors.size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(loaded.tensors[i].second.scalar_type(), to);
      EXPECT_TRUE(torch::equal(loaded.tensors[i].second, state.tensors[i].second.to(to)));
    }
    EXPECT_EQ(loaded.values, state.values);
  }
}

TEST(OptimizerState, AClassThatSavesNothingIsRefused) {
  Net net;
  Forgetful optimizer(net.tensors());
  EXPECT_THAT(error_of([&] { optimizer_state(optimizer, net.parameters); }),
              testing::AllOf(HasSubstr("save()"), HasSubstr("Forgetful")));
}

TEST(OptimizerState, DamagedBytesOfAnotherClassAreRefused) {
  Net net;
  OwnAdam optimizer(net.tensors(), 0.1);
  train(net, optimizer, 0, 2);
  OptimizerState state = snapshot(optimizer, net);
  state.tensors[0].second = state.tensors[0].second.slice(0, 0, 100);
  EXPECT_THAT(error_of([&] { load_optimizer_state(optimizer, net.parameters, state); }),
              HasSubstr("cannot read its saved state"));
  state.tensors.clear();
  EXPECT_THAT(error_of([&] { load_optimizer_state(optimizer, net.parameters, state); }),
              HasSubstr("missing: /archive"));
}

// Fused kernels want parameters, gradients and state of one layout.
TEST(OptimizerStateTest, StateHasTheStridesOfItsParameter) {
  const auto make = [] {
    return test::formula({4, 3, 2, 2}, 1).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  };
  const at::Tensor first = make(), second = make();
  torch::optim::SGD one({first}, torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD other({second}, torch::optim::SGDOptions(0.1).momentum(0.9));
  first.square().sum().backward();
  one.step();
  OptimizerState state = optimizer_state(one, {{"w", first}});
  for (auto& [name, tensor] : state.tensors) tensor = tensor.contiguous();  // as a file gives it
  load_optimizer_state(other, {{"w", second}}, state);
  const OptimizerState loaded = optimizer_state(other, {{"w", second}});
  ASSERT_EQ(loaded.tensors.size(), 1u);
  EXPECT_EQ(loaded.tensors[0].second.strides(), second.strides());
  EXPECT_TRUE(torch::equal(loaded.tensors[0].second, state.tensors[0].second));
}

}  // namespace
}  // namespace lockstep
