// The trainer with a divided model (ZeRO) against one that every rank holds whole.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <lockstep/sharded.h>

#include "checkpoint/reader.h"
#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::Training;
using testing::HasSubstr;

class ZeroTest : public testing::Test {
 protected:
  Training training(int stage, int ranks, const std::string& name) const {
    Training training;
    training.ranks = ranks;
    training.loader.batch_size = 24 / ranks;
    training.samples = 96;
    training.make_optimizer = [](auto parameters) {
      return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.02));
    };
    training.config = test::quiet_config(folder_.path() / name);
    training.config.zero.stage = stage;
    training.config.zero.persistence_threshold = 2;
    training.config.clip_grad_norm = 0.7;
    return training;
  }

  // Saved at one stage on some ranks, gone on at another stage on other ranks: all end where
  // a straight run of one rank ends.
  using Make = std::function<Training(int stage, int ranks, const std::string& name)>;
  void expect_from_each_to_each(const std::vector<std::pair<int, int>>& stages_and_ranks,
                                const Make& make) const {
    const Training::Outcome straight = make(0, 1, "straight").run();
    for (const auto& [stage, ranks] : stages_and_ranks) {
      const std::string name = fmt::format("from{}_{}", stage, ranks);
      Training first = make(stage, ranks, name);
      first.config.checkpoint_every = 3;
      first.config.checkpoint_keep = 10;
      first.run();
      for (const auto& [next_stage, next_ranks] : stages_and_ranks) {
        Training rest = make(next_stage, next_ranks, "rest");
        rest.config.resume = checkpoint(name, 12);
        const Training::Outcome outcome = rest.run();
        EXPECT_EQ(outcome.result.steps, straight.result.steps);
        test::expect_close_weights(outcome, straight, 1e-9);
        if (HasFailure()) FAIL() << stage << " on " << ranks << " to " << next_stage << " on " << next_ranks;
      }
    }
  }

  std::string checkpoint(const std::string& name, int64_t step) const {
    return (folder_.path() / name / fmt::format("checkpoints/step-{:010}", step)).string();
  }

  test::TemporaryFolder folder_{"/dev/shm"};
};

TEST_F(ZeroTest, EveryStageEndsWhereAWholeModelEnds) {
  for (const int ranks : {1, 2, 3}) {
    const Training::Outcome whole = training(0, ranks, "whole").run();
    for (const int stage : {1, 2, 3}) {
      const Training::Outcome divided = training(stage, ranks, "divided").run();
      EXPECT_NEAR(divided.result.train_loss, whole.result.train_loss, 1e-12);
      test::expect_close_weights(divided, whole);
    }
  }
}

TEST_F(ZeroTest, OffloadedStatesEndWhereAWholeModelEnds) {
  const Training::Outcome whole = training(0, 2, "whole").run();
  const auto expect_same = [&](const ZeroOptions& zero) {
    SCOPED_TRACE(fmt::format("stage {}, {}, {}", zero.stage, name_of(zero.offload_optimizer.device),
                             name_of(zero.offload_param.device)));
    Training offloaded = training(zero.stage, 2, "offloaded");
    offloaded.config.zero = zero;
    offloaded.config.zero.persistence_threshold = 2;
    const Training::Outcome outcome = offloaded.run();
    EXPECT_NEAR(outcome.result.train_loss, whole.result.train_loss, 1e-12);
    test::expect_close_weights(outcome, whole);
  };
  for (const int stage : {1, 2, 3}) {
    expect_same({.stage = stage, .offload_optimizer = {.device = OffloadDevice::kCpu}});
  }
  expect_same({.stage = 3,
               .offload_optimizer = {.device = OffloadDevice::kCpu},
               .offload_param = {.device = OffloadDevice::kCpu}});
  // Not in memory: its file is read and written past the page cache.
  const test::TemporaryFolder disk;
  expect_same(
      {.stage = 3, .offload_optimizer = {.device = OffloadDevice::kNvme, .nvme_path = disk.path().string()}});
}

TEST_F(ZeroTest, AccumulatesAndValidatesLikeAWholeModel) {
  const auto with_more = [&](int stage) {
    Training changed = training(stage, 2, fmt::format("more{}", stage));
    changed.config.accumulate_steps = 2;
    changed.config.val_every = 2;
    changed.batch_norm = true;
    // The bias before a batch norm has a gradient of nothing but rounding, which Adam would
    // make as large as any other.
    changed.make_optimizer = {};
    changed.fit = [](Trainer& trainer, const Loader& data) {
      const FitResult result = trainer.fit(data, data);
      EXPECT_EQ(trainer.predict(data).size(0), 96);
      return result;
    };
    return changed.run();
  };
  const Training::Outcome whole = with_more(0);
  for (const int stage : {1, 2, 3}) {
    const Training::Outcome divided = with_more(stage);
    test::expect_close_weights(divided, whole);
    EXPECT_NEAR(divided.result.metrics.at("val_loss"), whole.result.metrics.at("val_loss"), 1e-12);
  }
}

TEST_F(ZeroTest, CheckpointsGoFromEveryStageToEveryOther) {
  expect_from_each_to_each(
      {{0, 1}, {0, 2}, {1, 2}, {2, 3}, {3, 2}, {3, 4}},
      [this](int stage, int ranks, const std::string& name) { return training(stage, ranks, name); });
}

TEST_F(ZeroTest, GoesOnBitForBitOnAsManyRanks) {
  for (const int stage : {1, 2, 3}) {
    const std::string name = fmt::format("bits{}", stage);
    Training first = training(stage, 2, name);
    first.config.checkpoint_every = 3;
    first.config.checkpoint_keep = 10;
    const Training::Outcome straight = first.run();
    Training rest = training(stage, 2, "rest");
    rest.config.resume = checkpoint(name, 12);
    test::expect_equal_weights(rest.run(), straight);
  }
}

// A checkpoint of parts is one of whole weights to everybody who reads it.
TEST_F(ZeroTest, EveryRankWritesItsParts) {
  Training first = training(3, 3, "parts");
  first.config.checkpoint_every = 8;
  const Training::Outcome outcome = first.run();
  const checkpoint::Reader reader(checkpoint("parts", 32));
  reader.verify();
  EXPECT_EQ(reader.manifest().files.size(), 3u);
  EXPECT_TRUE(torch::equal(reader.read("model.0.weight"), outcome.weights[0]));
  EXPECT_TRUE(torch::equal(reader.read("model.3.bias"), outcome.weights[3]));
}

// Two names for one weight, and a parameter without elements.
struct OddImpl : torch::nn::Module {
  OddImpl()
      : first(register_module("first", torch::nn::Linear(1, 8))),
        last(register_module("last", torch::nn::Linear(8, 1))),
        inner(register_parameter("inner", torch::zeros({8, 8}))),
        nothing(register_parameter("nothing", torch::zeros({0, 3}))) {
    register_parameter("again", inner);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::tanh(torch::matmul(torch::tanh(first->forward(x)), inner));
    return last->forward(torch::tanh(torch::matmul(x, inner))) + nothing.sum();
  }
  torch::nn::Linear first, last;
  torch::Tensor inner, nothing;
};
TORCH_MODULE(Odd);

TEST_F(ZeroTest, AParameterThatTheOptimizerHasTwiceIsRefused) {
  for (const int stage : {0, 2}) {
    Training twice = training(stage, 1, "twice");
    twice.make_model = [] { return Model(Odd()); };
    twice.make_optimizer = [](auto parameters) {
      parameters.push_back(parameters.at(0));
      return std::make_unique<torch::optim::SGD>(parameters, 0.1);
    };
    EXPECT_THAT(test::error_of([&] { twice.run(); }), HasSubstr("twice"));
  }
}

TEST_F(ZeroTest, TiedAndEmptyParametersGoFromEveryStageToEveryOther) {
  expect_from_each_to_each({{0, 2}, {1, 2}, {2, 3}, {3, 2}},
                           [this](int stage, int ranks, const std::string& name) {
                             Training changed = training(stage, ranks, name);
                             changed.make_model = [] { return Model(Odd()); };
                             return changed;
                           });
}

// The next step would change the file while a thread reads it: the training waits.
TEST_F(ZeroTest, StatesInAFileAreSavedBetweenStepsAndGoOnBitForBit) {
  const test::TemporaryFolder disk;
  const auto in_a_file = [&](const std::string& name) {
    Training changed = training(3, 2, name);
    changed.config.zero.offload_optimizer.device = OffloadDevice::kNvme;
    changed.config.zero.offload_optimizer.nvme_path = disk.path().string();
    return changed;
  };
  Training first = in_a_file("file");
  first.config.checkpoint_every_steps = 1;
  first.config.checkpoint_keep = 100;
  const Training::Outcome straight = first.run();
  for (const int64_t step : {1, 13, 31}) {
    checkpoint::Reader(checkpoint("file", step)).verify();
    Training rest = in_a_file("rest");
    rest.config.resume = checkpoint("file", step);
    test::expect_equal_weights(rest.run(), straight);
  }
}

// 97 samples on three ranks: one has a batch more than the others.
TEST_F(ZeroTest, EvaluatesUnitByUnitWhereRanksHaveDifferentNumbersOfBatches) {
  using Unit = Sharded<torch::nn::LinearImpl>;
  const auto with_units = [&](int stage) {
    Training changed = training(stage, 3, fmt::format("units{}", stage));
    changed.samples = 97;
    changed.config.val_every = 2;
    changed.make_model = [] {
      return Model(torch::nn::Sequential(Unit(1, 16), torch::nn::Tanh(), Unit(16, 16), torch::nn::Tanh(),
                                         torch::nn::Linear(16, 1)));
    };
    changed.loss = [stage](const Batch& batch, const Model& model) {
      LossResult result = mse(batch, model);
      if (!torch::GradMode::is_enabled()) {  // after the unit's forward
        EXPECT_EQ(model.module()->parameters()[0].numel(), stage == 3 ? 0 : 16);
      }
      return result;
    };
    changed.fit = [](Trainer& trainer, const Loader& data) {
      const FitResult result = trainer.fit(data, data.with_batch_size(4));
      EXPECT_EQ(trainer.predict(data.with_batch_size(4)).size(0), 97);
      return result;
    };
    return changed.run();
  };
  const Training::Outcome whole = with_units(0);
  for (const int stage : {1, 2, 3}) {
    const Training::Outcome divided = with_units(stage);
    test::expect_close_weights(divided, whole);
    EXPECT_NEAR(divided.result.metrics.at("val_loss"), whole.result.metrics.at("val_loss"), 1e-12);
  }
}

TEST_F(ZeroTest, Bf16ParametersKeepTheirMasters) {
  const auto in_bf16 = [&](int stage, int ranks, const std::string& name) {
    Training changed = training(stage, ranks, name);
    changed.config.dtype = "bfloat16";
    changed.config.checkpoint_every = 3;
    changed.config.checkpoint_keep = 10;
    return changed;
  };
  const Training::Outcome straight = in_bf16(1, 2, "straight").run();
  for (const int stage : {1, 2, 3}) {
    const std::string name = fmt::format("short{}", stage);
    test::expect_equal_weights(in_bf16(stage, 2, name).run(), straight);
    Training rest = in_bf16(stage, 2, "rest");
    rest.config.checkpoint_every = 0;
    rest.config.resume = checkpoint(name, 12);
    test::expect_equal_weights(rest.run(), straight);
  }
}

// From each stage on some ranks to each other: it begins with the weights that were saved, and
// goes on to learn.
TEST_F(ZeroTest, SixteenBitCheckpointsGoFromEveryStageToEveryOther) {
  const std::vector<std::pair<int, int>> stages_and_ranks = {{0, 1}, {0, 2}, {1, 2}, {2, 3}, {3, 2}};
  for (const char* dtype : {"bfloat16", "float16"}) {
    const auto make = [&](int stage, int ranks, const std::string& name) {
      Training changed = training(stage, ranks, name);
      changed.config.dtype = dtype;
      changed.make_optimizer = [](auto parameters) {
        // The usual eps is 0 in float16.
        return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.02).eps(1e-3));
      };
      return changed;
    };
    for (const auto& [stage, ranks] : stages_and_ranks) {
      const std::string name = fmt::format("{}_from{}_{}", dtype, stage, ranks);
      Training first = make(stage, ranks, name);
      first.config.checkpoint_every = 3;
      first.config.checkpoint_keep = 10;
      const Training::Outcome straight = first.run();
      const checkpoint::Reader saved(checkpoint(name, 12));
      for (const auto& [next_stage, next_ranks] : stages_and_ranks) {
        SCOPED_TRACE(
            fmt::format("{}, stage {} on {} to {} on {}", dtype, stage, ranks, next_stage, next_ranks));
        Training begin = make(next_stage, next_ranks, "begin");
        begin.config.resume = checkpoint(name, 12);
        begin.config.max_iter = 3;
        const Training::Outcome loaded = begin.run();
        for (size_t i = 0; i < loaded.weights.size(); ++i) {
          const std::string weight = fmt::format("model.{}.{}", i / 2 * 3, i % 2 == 0 ? "weight" : "bias");
          EXPECT_TRUE(torch::equal(loaded.weights[i], saved.read(weight))) << weight;
        }
        Training rest = make(next_stage, next_ranks, "rest");
        rest.config.resume = checkpoint(name, 12);
        const Training::Outcome outcome = rest.run();
        EXPECT_EQ(outcome.result.steps, straight.result.steps);
        EXPECT_NEAR(outcome.result.train_loss, straight.result.train_loss, 0.05);
      }
    }
  }
}

TEST_F(ZeroTest, RefusesWhatNeedsWholeGradients) {
  Training with_step = training(1, 1, "refused");
  with_step.prepare = [](Trainer& trainer) {
    trainer.set_optimize_step([](const StepContext& context) { return context.closure(); });
  };
  EXPECT_THAT(test::error_of([&] { with_step.run(); }), HasSubstr("works on whole gradients"));
  Training changed = training(1, 1, "refused");
  changed.prepare = [](Trainer& trainer) {
    torch::optim::SGD other(trainer.model().module()->parameters(), 0.1);
    const auto scope = trainer.enable_grad_opt(other);
  };
  EXPECT_THAT(test::error_of([&] { changed.run(); }),
              HasSubstr("the optimizer cannot be changed with zero_stage 1"));
  Training averaged = training(3, 1, "refused");
  averaged.config.ema_decay = 0.9;
  EXPECT_THAT(test::error_of([&] { averaged.run(); }), HasSubstr("ema_decay averages whole parameters"));
  Training lbfgs = training(2, 1, "refused");
  lbfgs.make_optimizer = [](auto parameters) { return std::make_unique<torch::optim::LBFGS>(parameters); };
  EXPECT_THAT(test::error_of([&] { lbfgs.run(); }), HasSubstr("LBFGS looks at whole parameters together"));
}

}  // namespace
}  // namespace lockstep
