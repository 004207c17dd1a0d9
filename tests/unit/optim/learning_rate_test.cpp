#include <lockstep/error.h>
#include <lockstep/json.h>
#include <lockstep/schedule.h>

#include <cmath>
#include <limits>

#include "support/config_error.h"

namespace lockstep {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<LearningRateSchedule> all_schedules() {
  return {constant_rate(),
          step_decay({.every = 3, .gamma = 0.5}),
          multi_step_decay({.milestones = {2, 5}, .gamma = 0.1}),
          exponential_decay({.gamma = 0.9}),
          polynomial_decay({.total_steps = 7, .power = 2}),
          cyclic_rate({.base_lr = 0.01, .max_lr = 0.1, .step_size = 4}),
          cyclic_rate({.max_lr = 0.1, .step_size = 4}),
          cosine_annealing({.t_max = 5, .min_lr = 0.001}),
          cosine_restarts({.t_0 = 3, .t_mult = 2, .min_lr = 0.001}),
          one_cycle({.total_steps = 10, .max_lr = 1.0}),
          one_cycle({.total_steps = 10, .anneal = OneCycle::Anneal::kLinear, .three_phase = true}),
          warmup_lr({.warmup_num_steps = 6}),
          warmup_lr({.warmup_max_lr = 0.2, .warmup_num_steps = 6, .warmup_type = WarmupType::kLinear}),
          warmup_decay_lr({.total_num_steps = 20, .warmup_num_steps = 6}),
          warmup_cosine_lr({.total_num_steps = 20, .warmup_num_steps = 6}),
          lr_range_test({.lr_range_test_step_size = 5, .lr_range_test_staircase = true}),
          deepspeed_one_cycle({.cycle_min_lr = 0.01,
                               .cycle_max_lr = 0.1,
                               .decay_lr_rate = 0.1,
                               .cycle_first_step_size = 5,
                               .cycle_second_step_size = 7,
                               .decay_step_size = 2}),
          with_warm_up({.steps = 4, .start_factor = 0.1}, cosine_annealing({.t_max = 5}))};
}

TEST(LearningRate, SurvivesJson) {
  for (const auto& schedule : all_schedules()) {
    const auto json = Json::parse(schedule.to_json().dump());
    const auto again = LearningRateSchedule::from_json(json);
    EXPECT_EQ(again.to_json(), json);
    for (int64_t step = 0; step < 30; ++step) {
      EXPECT_EQ(again.at(step, 0.05), schedule.at(step, 0.05)) << json << " step " << step;
      EXPECT_EQ(again.momentum_at(step), schedule.momentum_at(step)) << json << " step " << step;
      EXPECT_EQ(again.betas_at(step), schedule.betas_at(step)) << json << " step " << step;
    }
  }
}

TEST(LearningRate, TakesDefaultsForWhatJsonLeavesOut) {
  const auto schedule = LearningRateSchedule::from_json({{"kind", "step"}, {"every", 2}});
  EXPECT_EQ(schedule.at(2, 1.0), 0.5);
  const auto warm = LearningRateSchedule::from_json({{"kind", "warm_up"}, {"steps", 2}, {"start_factor", 0}});
  EXPECT_EQ(warm.at(0, 1.0), 0.0);
  EXPECT_EQ(warm.at(1, 1.0), 0.5);
  EXPECT_EQ(warm.at(2, 1.0), 1.0);
}

TEST(LearningRate, WarmUpLeadsToWhereTheScheduleBegins) {
  const auto cycle = one_cycle({.total_steps = 20});
  const auto schedule = with_warm_up({.steps = 5, .start_factor = 0.2}, cycle);
  EXPECT_EQ(schedule.at(0, 1.0), cycle.at(0, 1.0) * 0.2);
  EXPECT_EQ(schedule.at(5, 1.0), cycle.at(0, 1.0));
  EXPECT_EQ(schedule.at(9, 1.0), cycle.at(4, 1.0));
  EXPECT_EQ(schedule.momentum_at(3), cycle.momentum_at(0));
}

TEST(LearningRate, OneCycleRestsAtItsEnd) {
  const auto schedule = one_cycle({.total_steps = 10, .max_lr = 1.0});
  EXPECT_EQ(schedule.at(9, 0), schedule.at(10, 0));
  EXPECT_EQ(schedule.at(9, 0), schedule.at(100000, 0));
  EXPECT_NEAR(schedule.at(9, 0), 1.0 / 25 / 1e4, 1e-15);
}

TEST(LearningRate, OneCycleTakesPhasesWithoutSteps) {
  for (double share : {0.0, 0.1, 1.0}) {
    const auto schedule = one_cycle({.total_steps = 10, .max_lr = 1.0, .pct_start = share});
    for (int64_t step = 0; step < 10; ++step) EXPECT_TRUE(std::isfinite(schedule.at(step, 0)));
  }
  EXPECT_TRUE(std::isfinite(one_cycle({.total_steps = 1}).at(0, 0.1)));
}

TEST(LearningRate, BadArgumentsAreNamed) {
  const auto expect = [](const std::function<void()>& body, const char* option) {
    EXPECT_THAT(error_of(body), HasSubstr(std::string("option '") + option + "'"));
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect([] { step_decay({.every = 0}); }, "every");
  expect([&] { step_decay({.every = 1, .gamma = nan}); }, "gamma");
  expect([] { multi_step_decay({}); }, "milestones");
  expect([] { multi_step_decay({.milestones = {3, -1}}); }, "milestones");
  expect([] { exponential_decay({.gamma = 0}); }, "gamma");
  expect([] { polynomial_decay({.total_steps = 0}); }, "total_steps");
  expect([] { polynomial_decay({.power = -1}); }, "power");
  expect([] { cyclic_rate({.base_lr = 0.2, .max_lr = 0.1}); }, "max_lr");
  expect([] { cyclic_rate({.step_size = 0}); }, "step_size");
  expect([] { cosine_annealing({.t_max = 0}); }, "t_max");
  expect([] { cosine_annealing({.t_max = 1, .min_lr = -1}); }, "min_lr");
  expect([] { cosine_restarts({.t_0 = 0}); }, "t_0");
  expect([] { cosine_restarts({.t_mult = 0}); }, "t_mult");
  expect([] { one_cycle({.total_steps = 0}); }, "total_steps");
  expect([] { one_cycle({.pct_start = 1.5}); }, "pct_start");
  expect([] { one_cycle({.div_factor = 0}); }, "div_factor");
  expect([] { warmup_lr({.warmup_num_steps = 0}); }, "warmup_num_steps");
  expect([] { warmup_lr({.warmup_min_lr = -1}); }, "warmup_min_lr");
  expect([] { warmup_lr({.warmup_max_lr = -1}); }, "warmup_max_lr");
  expect([] { warmup_decay_lr({}); }, "total_num_steps");
  expect([] { warmup_decay_lr({.total_num_steps = 5, .warmup_num_steps = -1}); }, "warmup_num_steps");
  expect([] { warmup_cosine_lr({}); }, "total_num_steps");
  expect([] { warmup_cosine_lr({.total_num_steps = 5, .cos_min_ratio = 2}); }, "cos_min_ratio");
  expect([] { lr_range_test({.lr_range_test_step_size = 0}); }, "lr_range_test_step_size");
  expect([] { deepspeed_one_cycle({}); }, "cycle_min_lr");
  expect([] { deepspeed_one_cycle({.cycle_min_lr = 0.1}); }, "cycle_max_lr");
  expect([] { deepspeed_one_cycle({.cycle_min_lr = 0, .cycle_max_lr = 1, .cycle_first_step_size = 0}); },
         "cycle_first_step_size");
  expect([] { deepspeed_one_cycle({.cycle_min_lr = 0, .cycle_max_lr = 1, .cycle_second_step_size = -1}); },
         "cycle_second_step_size");
  expect([] { with_warm_up({.steps = 0}, constant_rate()); }, "steps");
  expect([] { with_warm_up({.start_factor = 2}, constant_rate()); }, "start_factor");
}

TEST(LearningRate, BadJsonIsNamed) {
  const auto read = [](const char* text) {
    return error_of([&] { LearningRateSchedule::from_json(Json::parse(text)); });
  };
  EXPECT_THAT(read("[]"), HasSubstr("'kind'"));
  EXPECT_THAT(read(R"({"kind": "sawtooth"})"), HasSubstr("sawtooth"));
  EXPECT_THAT(read(R"({"kind": "step", "evry": 3})"), HasSubstr("evry"));
  EXPECT_THAT(read(R"({"kind": "step", "every": "3"})"), HasSubstr("'every'"));
  EXPECT_THAT(read(R"({"kind": "step", "every": 1.5})"), HasSubstr("'every'"));
  EXPECT_THAT(read(R"({"kind": "step", "every": 18446744073709551615})"), HasSubstr("wrong kind"));
  EXPECT_THAT(read(R"({"kind": "one_cycle", "anneal": "cubic"})"), HasSubstr("'anneal'"));
  EXPECT_THAT(read(R"({"kind": "WarmupLR", "warmup_type": "cubic"})"), HasSubstr("'warmup_type'"));
  EXPECT_THAT(read(R"({"kind": "WarmupLR", "warmup_steps": 5})"), HasSubstr("warmup_num_steps"));
  EXPECT_THAT(read(R"({"kind": "OneCycle", "cycle_min_lr": 0.1})"), HasSubstr("'cycle_max_lr'"));
  EXPECT_THAT(read(R"({"kind": "warm_up", "then": {"kind": "step", "every": 0}})"), HasSubstr("'every'"));
}

TEST(LearningRate, ANegativeStepIsRefused) {
  EXPECT_THROW(constant_rate().at(-1, 1.0), ConfigError);
  EXPECT_THROW(constant_rate().momentum_at(-1), ConfigError);
}

std::vector<std::unique_ptr<torch::optim::Optimizer>> all_optimizers() {
  std::vector<std::unique_ptr<torch::optim::Optimizer>> all;
  const auto parameters = [] { return std::vector<at::Tensor>{torch::zeros({2})}; };
  all.push_back(std::make_unique<torch::optim::SGD>(parameters(), 0.1));
  all.push_back(std::make_unique<torch::optim::Adam>(parameters(), 0.1));
  all.push_back(std::make_unique<torch::optim::AdamW>(parameters(), 0.1));
  all.push_back(std::make_unique<torch::optim::Adagrad>(parameters(), 0.1));
  all.push_back(std::make_unique<torch::optim::RMSprop>(parameters(), 0.1));
  all.push_back(std::make_unique<torch::optim::LBFGS>(parameters(), 0.1));
  return all;
}

TEST(LearningRate, SetsTheRateOfEveryOptimizer) {
  for (auto& optimizer : all_optimizers()) {
    set_learning_rates(*optimizer, {0.25});
    EXPECT_THAT(learning_rates(*optimizer), ElementsAre(0.25));
  }
}

TEST(LearningRate, EveryGroupKeepsItsOwnBase) {
  auto w = torch::zeros({2});
  auto b = torch::zeros({2});
  torch::optim::SGD optimizer({{{w}, std::make_unique<torch::optim::SGDOptions>(1.0)},
                               {{b}, std::make_unique<torch::optim::SGDOptions>(0.1)}},
                              torch::optim::SGDOptions(0.5));
  ScheduledLearningRate rate(optimizer, step_decay({.every = 2, .gamma = 0.5}));
  rate.advance();
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(1.0, 0.1));
  rate.advance();
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(0.5, 0.05));
  rate.set_step(5);
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(0.25, 0.025));
  EXPECT_THAT(error_of([&] { set_learning_rates(optimizer, {0.1}); }), HasSubstr("1 rates for 2 groups"));
  EXPECT_THAT(error_of([&] { set_learning_rates(optimizer, {0.1, -1}); }), HasSubstr("group 1"));
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(0.25, 0.025)) << "nothing was set";
}

TEST(LearningRate, StateGoesOnFromAnyOptimizer) {
  torch::optim::SGD first({torch::zeros({2})}, 0.3);
  ScheduledLearningRate straight(first, cosine_annealing({.t_max = 10}));
  for (int i = 0; i < 4; ++i) straight.advance();
  const auto state = Json::parse(straight.state().dump());

  torch::optim::SGD second({torch::zeros({2})}, 0.7);  // a rate that must not count
  ScheduledLearningRate resumed(second, cosine_annealing({.t_max = 10}));
  resumed.load_state(state);
  EXPECT_EQ(resumed.step(), 4);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(learning_rates(second), learning_rates(first));
    straight.advance();
    resumed.advance();
  }
}

TEST(LearningRate, OneCycleMovesMomentumOrSaysThatItCannot) {
  for (auto& optimizer : all_optimizers()) {
    const bool has_momentum = dynamic_cast<torch::optim::Adagrad*>(optimizer.get()) == nullptr &&
                              dynamic_cast<torch::optim::LBFGS*>(optimizer.get()) == nullptr;
    EXPECT_EQ(set_momentum(*optimizer, 0.7), has_momentum);
    if (has_momentum) continue;
    EXPECT_THAT(error_of([&] { ScheduledLearningRate(*optimizer, one_cycle({.total_steps = 5})); }),
                HasSubstr("cycle_momentum"));
    EXPECT_THAT(learning_rates(*optimizer), ElementsAre(0.1));
    ScheduledLearningRate(*optimizer, one_cycle({.total_steps = 5, .cycle_momentum = false}));
  }
  torch::optim::Adam adam({torch::zeros({2})}, 0.1);
  ScheduledLearningRate rate(adam, one_cycle({.total_steps = 5}));
  const auto& options = static_cast<const torch::optim::AdamOptions&>(adam.param_groups()[0].options());
  EXPECT_EQ(options.betas(), std::make_tuple(0.95, 0.999));
}

// In kMax the metrics are below 0: a standstill must be a miss there too.
TEST(ReduceOnPlateau, ReducesAfterPatienceInBothModes) {
  for (const auto mode : {MetricMode::kMin, MetricMode::kMax}) {
    const double sign = mode == MetricMode::kMin ? 1 : -1;
    ReduceOnPlateau plateau({.patience = 2, .mode = mode});
    EXPECT_FALSE(plateau.observe(sign * 5));
    EXPECT_FALSE(plateau.observe(sign * 4)) << "better";
    EXPECT_EQ(plateau.best(), sign * 4);
    EXPECT_FALSE(plateau.observe(sign * 4.5));
    EXPECT_FALSE(plateau.observe(std::numeric_limits<double>::quiet_NaN()));
    EXPECT_TRUE(plateau.observe(sign * 4));
    EXPECT_EQ(plateau.misses(), 0);
  }
}

TEST(ReduceOnPlateau, StopsAtTheLeastRate) {
  torch::optim::SGD optimizer({torch::zeros({2})}, 0.1);
  ReduceOnPlateau plateau({.patience = 0, .gamma = 0.1, .min_lr = 0.005});
  plateau.observe(1.0, optimizer);
  EXPECT_TRUE(plateau.observe(1.0, optimizer));
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(testing::DoubleEq(0.01)));
  plateau.observe(1.0, optimizer);
  plateau.observe(1.0, optimizer);
  EXPECT_THAT(learning_rates(optimizer), ElementsAre(0.005));
}

TEST(ReduceOnPlateau, StateGoesOn) {
  ReduceOnPlateau straight({.patience = 3, .cooldown = 2});
  EXPECT_TRUE(straight.state().at("best").is_null());
  std::vector<double> metrics{3, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  for (size_t stop = 0; stop < metrics.size(); ++stop) {
    ReduceOnPlateau resumed({.patience = 3, .cooldown = 2});
    resumed.load_state(Json::parse(straight.state().dump()));
    ReduceOnPlateau copy = straight;
    for (size_t i = stop; i < metrics.size(); ++i) {
      EXPECT_EQ(resumed.observe(metrics[i]), copy.observe(metrics[i])) << "stopped at " << stop;
    }
    straight.observe(metrics[stop]);
  }
}

TEST(ReduceOnPlateau, BadArgumentsAreNamed) {
  EXPECT_THAT(error_of([] { ReduceOnPlateau({.monitor = ""}); }), HasSubstr("'monitor'"));
  EXPECT_THAT(error_of([] { ReduceOnPlateau({.patience = -1}); }), HasSubstr("'patience'"));
  EXPECT_THAT(error_of([] { ReduceOnPlateau({.gamma = 1}); }), HasSubstr("'gamma'"));
  EXPECT_THAT(error_of([] { ReduceOnPlateau({.threshold = -1}); }), HasSubstr("'threshold'"));
  EXPECT_THAT(error_of([] { ReduceOnPlateau({.cooldown = -1}); }), HasSubstr("'cooldown'"));
  EXPECT_THAT(error_of([] { ReduceOnPlateau({.min_lr = -1}); }), HasSubstr("'min_lr'"));
}

}  // namespace
}  // namespace lockstep
