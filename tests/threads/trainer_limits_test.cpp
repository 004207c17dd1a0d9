// How a training is ended, validated and saved besides at the end of an epoch.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/c10d.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "support/rank_threads.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "train/step_log.h"
#include "train/time_limits.h"

namespace lockstep {
namespace {

using nlohmann::json;
using test::Training;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

FitResult fit_with_validation(Trainer& trainer, const Loader& data) { return trainer.fit(data, data); }

// 64 samples in batches of 16: four steps an epoch on one rank, two on two.
class TrainerLimitsTest : public testing::Test {
 protected:
  Training training(const std::string& name) const {
    Training one;
    one.config = test::quiet_config(folder_.path() / name);
    return one;
  }

  std::vector<json> rows(const std::string& name) const {
    std::vector<json> found;
    std::ifstream file(folder_.path() / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      json row = json::parse(line);
      if (row.contains("step") && !row.contains("text")) found.push_back(std::move(row));
    }
    return found;
  }

  // The steps whose rows have this value.
  std::vector<int64_t> steps_with(const std::string& name, const std::string& key) const {
    std::vector<int64_t> steps;
    for (const json& row : rows(name)) {
      if (row.contains(key)) steps.push_back(row["step"]);
    }
    return steps;
  }

  std::vector<int64_t> saved_steps(const std::string& name) const {
    std::vector<int64_t> steps;
    for (const auto& entry : checkpoint::list(folder_.path() / name / "checkpoints")) {
      steps.push_back(entry.step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }

  test::TemporaryFolder folder_;
};

// --- rows of steps ---

TEST_F(TrainerLimitsTest, ARowOfAStepHasItsOwnLossOfAllRanks) {
  for (const int ranks : {1, 2}) {
    const std::string name = fmt::format("rows-{}", ranks);
    Training one = training(name);
    one.ranks = ranks;
    one.config.max_iter = 2;
    one.config.log_every = 1;
    one.config.clip_grad_norm = 1e-3;
    std::mutex mutex;
    std::map<int64_t, double> losses;  // by step, the sum over the ranks
    one.make_callbacks = [&]() -> std::vector<std::shared_ptr<Callback>> {
      return {std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchEnd}, [&](Trainer& trainer) {
        const std::lock_guard lock(mutex);
        losses[trainer.result().step] += trainer.result().loss;
      })};
    };
    one.run();
    int found = 0;
    for (const json& row : rows(name)) {
      if (!row.contains("step_loss")) continue;
      ++found;
      EXPECT_NEAR(row["step_loss"].get<double>(), losses.at(row["step"]) / ranks, 1e-12);
      EXPECT_GT(row["grad_norm"].get<double>(), 1e-3) << "before clipping";
      // At the last step of an epoch they are in its row.
      const bool is_last = row["step"].get<int64_t>() % (4 / ranks) == 0;
      EXPECT_EQ(row.contains("learning_rate"), !is_last);
      EXPECT_EQ(row.contains("samples_per_s"), !is_last);
      if (!is_last) EXPECT_NEAR(row["learning_rate"].get<double>(), 0.05, 1e-12);
      if (!is_last) EXPECT_GT(row["samples_per_s"].get<double>(), 0);
      EXPECT_GT(row["memory_mib"].get<double>(), 1);
    }
    EXPECT_EQ(found, 8 / ranks);
  }
}

TEST_F(TrainerLimitsTest, TheNormOfARowIsThatOfTheGradientsAtEveryStage) {
  std::vector<double> norms;
  for (const int stage : {0, 1, 2, 3}) {
    const std::string name = fmt::format("stage-{}", stage);
    Training one = training(name);
    one.ranks = 2;
    one.config.zero.stage = stage;
    one.config.max_iter = 1;
    one.config.log_every = 1;
    one.run();
    norms.push_back(rows(name).front()["grad_norm"]);
  }
  for (const double norm : norms) EXPECT_NEAR(norm, norms[0], 1e-10);
}

TEST(StepsBetweenRowsTest, AboutFiftyAnEpochAndFewInLongTrainingsOfShortEpochs) {
  const auto between = [](int64_t epochs, int64_t steps) {
    TrainConfig config;
    config.max_iter = epochs;
    return train::steps_between_rows(config, steps);
  };
  EXPECT_EQ(between(1, 1000), 20);
  EXPECT_EQ(between(10, 5000), 100);
  EXPECT_EQ(between(1, 4), 1);
  EXPECT_EQ(between(10, 100), 2) << "1000 steps in all";
  EXPECT_EQ(between(11, 100), 20);
  EXPECT_EQ(between(50, 1), 0) << "the row of the epoch is enough";
  TrainConfig off;
  off.write_every = 0;
  EXPECT_EQ(train::steps_between_rows(off, 100), 0);
  off.log_every = 7;
  EXPECT_EQ(train::steps_between_rows(off, 100), 7);
}

// --- ends ---

TEST_F(TrainerLimitsTest, MaxStepsEndsInsideAnEpochAndALaterLimitContinuesToTheSameBits) {
  for (const int ranks : {1, 2}) {
    const auto run = [&](const std::string& name, int64_t max_steps) {
      Training one = training(name);
      one.ranks = ranks;
      one.loader.batch_size = 8;
      one.config.max_iter = 3;
      one.config.max_steps = max_steps;
      one.config.checkpoint_every = 1;
      one.config.val_every_steps = 3;
      one.fit = fit_with_validation;
      return one.run();
    };
    const std::string cut = fmt::format("cut-{}", ranks);
    const auto first = run(cut, 5);
    EXPECT_EQ(first.result.steps, 5);
    EXPECT_EQ(first.result.stopped, "max_steps");
    EXPECT_TRUE(std::isfinite(first.result.train_loss)) << "of the part of the epoch";
    EXPECT_NEAR(rows(cut).back()["epoch"].get<double>(), 5.0 * ranks / 8, 1e-9);
    const auto again = run(cut, 5);
    EXPECT_EQ(again.result.steps, 5) << "started again it is at its end";
    test::expect_equal_weights(first, again);
    const auto rest = run(cut, 0);
    const auto whole = run(fmt::format("whole-{}", ranks), 0);
    EXPECT_EQ(rest.result.stopped, "");
    EXPECT_EQ(rest.result.steps, whole.result.steps);
    EXPECT_DOUBLE_EQ(rest.result.train_loss, whole.result.train_loss);
    EXPECT_EQ(rest.result.metrics.at("val_loss"), whole.result.metrics.at("val_loss"));
    test::expect_equal_weights(rest, whole);
  }
}

TEST_F(TrainerLimitsTest, MaxTimeEndsAllRanksAtOneStepAndCountsOverResumes) {
  const auto trained_s = [this] {
    const checkpoint::Reader reader(checkpoint::newest_valid(folder_.path() / "time/checkpoints")->path);
    return reader.metadata().at("trained_s").get<double>();
  };
  Training one = training("time");
  one.ranks = 2;
  one.config.max_iter = 1'000'000'000;
  one.config.max_time_s = 0.3;
  one.config.checkpoint_every = 1'000'000;
  one.config.write_every = 0;
  const auto first = one.run();  // equal weights on all ranks: the same step
  EXPECT_EQ(first.result.stopped, "max_time_s");
  EXPECT_GT(first.result.steps, 0);
  EXPECT_GE(trained_s(), 0.3);
  const auto again = one.run();
  EXPECT_EQ(again.result.steps, first.result.steps);
  Training longer = one;
  // A first run on a busy machine passes its limit by any amount, so the next limit counts from where it
  // ended.
  longer.config.max_time_s = trained_s() + 0.3;
  const auto rest = longer.run();
  EXPECT_GT(rest.result.steps, first.result.steps);
  EXPECT_GE(trained_s(), longer.config.max_time_s);
}

// Rank 1's clock says something else; what rank 0 says counts.
TEST(TimeLimitsTest, TheClockOfRankZeroDecidesForAll) {
  test::run_ranks(2, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    const Communicator group = make_communicator(std::move(store), rank, 2, {.backend = "shm"});
    train::TimeLimits late(group, {.max_time_s = 100});
    late.begin(rank == 0 ? 0 : 1000);
    EXPECT_FALSE(late.after_step().stop);
    train::TimeLimits ended(group, {.max_time_s = 100, .save_every_s = 1000});
    ended.begin(rank == 0 ? 1000 : 0);
    const auto due = ended.after_step();
    EXPECT_TRUE(due.stop);
    EXPECT_FALSE(due.save);
  });
}

TEST_F(TrainerLimitsTest, SavesByTime) {
  Training one = training("minutes");
  one.ranks = 2;
  one.config.max_iter = 1;
  one.config.checkpoint_every_min = 1e-9;  // after every step
  one.config.checkpoint_keep = 100;
  one.run();
  EXPECT_THAT(saved_steps("minutes"), ElementsAre(1, 2));
}

TEST_F(TrainerLimitsTest, ATraceOfStepsThatWereNotTrainedIsMissed) {
  Training one = training("traced");
  one.config.max_iter = 1;
  one.config.trace_steps = "100:101";
  testing::internal::CaptureStderr();
  one.run();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("trace_steps is 100:101, and steps 1 to 4 were trained"));
  one.config.trace_steps = "3:100";
  one.config.log_folder = (folder_.path() / "cut").string();
  one.run();
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "cut" / "rank0.pt.trace.json"));
}

// --- validation ---

TEST_F(TrainerLimitsTest, ValidatesInsideAnEpochAndWritesIt) {
  Training one = training("inside");
  one.config.max_iter = 2;
  one.config.val_every_steps = 3;
  one.config.val_at_start = false;
  one.fit = fit_with_validation;
  const auto with = one.run();
  EXPECT_THAT(steps_with("inside", "val_loss"), ElementsAre(3, 4, 6, 8))
      << "4 and 8 are the rows of epochs, which have the last validation";
  Training plain = training("plain");
  plain.config.max_iter = 2;
  test::expect_equal_weights(with, plain.run());
}

TEST_F(TrainerLimitsTest, EachValidationSetHasItsOwnMetrics) {
  Training one = training("sets");
  one.ranks = 2;
  one.config.max_iter = 1;
  one.config.val_every = 1;
  const auto offset = std::make_shared<TensorDataset>(std::vector<torch::Tensor>{
      torch::zeros({7, 1}, torch::kFloat64), torch::full({7, 1}, 100, torch::kFloat64)});
  one.fit = [&](Trainer& trainer, const Loader& data) {
    const Loader far(offset, {.batch_size = 2});
    trainer.add_validation_set("far", far);
    const FitResult result = trainer.fit(data, data);
    EXPECT_NEAR(result.metrics.at("val_far_loss"), trainer.validate(far).loss, 1e-9);
    EXPECT_THAT([&] { trainer.add_validation_set("far", far); },
                ThrowsMessage<ConfigError>(HasSubstr("a validation set needs a name that no other one has")));
    return result;
  };
  const auto outcome = one.run();
  EXPECT_GT(outcome.result.metrics.at("val_far_loss"), 5000);
  EXPECT_LT(outcome.result.metrics.at("val_loss"), 10);
}

TEST_F(TrainerLimitsTest, ATrialValidatesOnAsFewBatchesAsItTrainsOn) {
  const auto samples = [this](const std::string& name, const std::function<void(TrainConfig&)>& change) {
    Training one = training(name);
    one.config.max_iter = 1;
    one.config.val_every = 1;
    change(one.config);
    int64_t evaluated = 0;
    one.fit = [&](Trainer& trainer, const Loader& data) {
      FitResult result = trainer.fit(data, data);
      evaluated = trainer.result().evaluated_samples;
      EXPECT_EQ(trainer.test(data).samples, 64) << "a test is whole";
      return result;
    };
    one.run();
    return evaluated;
  };
  EXPECT_EQ(samples("all", [](TrainConfig&) {}), 64);
  EXPECT_EQ(samples("trial", [](TrainConfig& config) { config.max_batches = 2; }), 32);
  EXPECT_EQ(samples("own", [](TrainConfig& config) { config.max_val_batches = 1; }), 16);
  EXPECT_EQ(samples("both",
                    [](TrainConfig& config) {
                      config.max_batches = 1;
                      config.max_val_batches = 3;
                    }),
            48);
}

// --- the best ---

// A metric that is the number of validations so far, on every rank.
Loss with_count(const std::shared_ptr<std::vector<double>>& values) {
  return [values](const Batch& batch, const Model& model) -> LossResult {
    const double value = (*values)[0];
    return {mse(batch, model), {{"score", torch::tensor(value, torch::kFloat64)}}};
  };
}

TEST_F(TrainerLimitsTest, TheBestByAnyMetricAndModeAndTheBestFewStay) {
  const std::vector<double> scores = {0.1, 0.7, 0.3, 0.9, 0.8, 0.2};
  const auto run = [&](const std::string& name, const std::string& mode, int keep_best) {
    Training one = training(name);
    one.config.max_iter = 6;
    one.config.val_every = 1;
    one.config.val_at_start = false;
    one.config.checkpoint_every = 1;
    one.config.checkpoint_keep = 1;
    one.config.checkpoint_keep_best = keep_best;
    one.config.best_metric = "val_score";
    one.config.best_mode = mode;
    one.config.checkpoint_async = false;
    const auto value = std::make_shared<std::vector<double>>(1);
    one.loss = with_count(value);
    one.config.callbacks = {std::make_shared<Callback>(
        CallbackOptions{.on = Stage::kValEpochStart}, [&, value](Trainer& trainer) {
          (*value)[0] = scores[static_cast<size_t>(trainer.result().step / 4 - 1)];
        })};
    one.fit = fit_with_validation;
    one.run();
  };
  run("max", "max", 1);
  EXPECT_THAT(saved_steps("max"), ElementsAre(16, 24)) << "the best and the newest";
  run("min", "min", 1);
  EXPECT_THAT(saved_steps("min"), ElementsAre(4, 24));
  run("max3", "max", 3);
  EXPECT_THAT(saved_steps("max3"), ElementsAre(8, 16, 20, 24));
  const auto best = checkpoint::list(folder_.path() / "max/checkpoints");
  for (const auto& entry : best) {
    if (entry.step == 16) EXPECT_EQ(entry.metric, 0.9);
  }
  EXPECT_THAT([&] { run("wrong", "sideways", 1); }, ThrowsMessage<ConfigError>(HasSubstr("best_mode")));
}

TEST_F(TrainerLimitsTest, BestOnlyKeepsTheBestFew) {
  const std::vector<double> scores = {0.1, 0.7, 0.3, 0.9, 0.2, 0.8};
  Training one = training("few");
  one.config.max_iter = 6;
  one.config.val_every = 1;
  one.config.val_at_start = false;
  one.config.checkpoint_best_only = true;
  one.config.checkpoint_keep_best = 2;
  one.config.best_metric = "val_score";
  one.config.best_mode = "max";
  one.config.checkpoint_async = false;
  const auto value = std::make_shared<std::vector<double>>(1);
  one.loss = with_count(value);
  one.config.callbacks = {
      std::make_shared<Callback>(CallbackOptions{.on = Stage::kValEpochStart}, [&, value](Trainer& trainer) {
        (*value)[0] = scores[static_cast<size_t>(trainer.result().step / 4 - 1)];
      })};
  one.fit = fit_with_validation;
  one.run();
  EXPECT_THAT(saved_steps("few"), ElementsAre(16, 24));
}

TEST_F(TrainerLimitsTest, AnUnknownBestMetricIsNamed) {
  Training one = training("unknown");
  one.config.val_every = 1;
  one.config.best_metric = "val_accuracy";
  one.fit = fit_with_validation;
  EXPECT_THAT([&] { one.run(); },
              ThrowsMessage<ConfigError>(HasSubstr("there is no metric 'val_accuracy': there are val_loss")));
}

// --- weights only ---

TEST_F(TrainerLimitsTest, WeightsOnlyCheckpointsHaveNoStateAndAFinishedRunStaysFinished) {
  for (const int stage : {0, 2}) {
    const std::string name = fmt::format("weights-{}", stage);
    Training one = training(name);
    one.ranks = stage == 0 ? 1 : 2;
    one.config.zero.stage = stage;
    one.config.max_iter = 2;
    one.config.checkpoint_every = 1;
    one.config.checkpoint_weights_only = true;
    const auto first = one.run();
    const checkpoint::Reader reader(checkpoint::newest_valid(folder_.path() / name / "checkpoints")->path);
    for (const auto& [tensor, entry] : reader.manifest().tensors) {
      EXPECT_THAT(tensor, testing::StartsWith("model.")) << tensor;
    }
    EXPECT_FALSE(reader.metadata().contains("optimizer"));
    const auto again = one.run();
    EXPECT_EQ(again.result.steps, first.result.steps) << "nothing is left to train";
    test::expect_equal_weights(first, again);
  }
}

// --- gradients between ranks ---

TEST_F(TrainerLimitsTest, CompressionReachesTheReduction) {
  const auto run = [this](const std::string& name, const std::function<void(TrainConfig&)>& change) {
    Training one = training(name);
    one.ranks = 2;
    one.config.max_iter = 2;
    change(one.config);
    return one.run();
  };
  const auto plain = run("plain", [](TrainConfig&) {});
  for (const char* dtype : {"fp16", "bf16"}) {
    const auto compressed = run(dtype, [dtype](TrainConfig& config) { config.gradient_compression = dtype; });
    EXPECT_FALSE(torch::equal(plain.weights[0], compressed.weights[0])) << "rounded";
    test::expect_close_weights(plain, compressed, 0.1);
  }
  EXPECT_THAT(
      [&] {
        run("zero", [](TrainConfig& config) {
          config.zero.stage = 1;
          config.gradient_compression = "fp16";
        });
      },
      ThrowsMessage<ConfigError>(
          HasSubstr("gradient_compression is for a replicated model, and zero_stage is 1")));
}

// The gradients of a bucket are views of one memory.
TEST_F(TrainerLimitsTest, SizesOfBucketsReachTheReduction) {
  const auto buckets = [this](const std::string& name, std::optional<double> cap,
                              std::optional<double> first) {
    Training one = training(name);
    one.ranks = 2;
    one.config.max_iter = 1;
    one.config.bucket_cap_mb = cap;
    one.config.first_bucket_cap_mb = first;
    // From the end: 8, 1600, 1600 and 1600 bytes.
    one.make_model = [] {
      return torch::nn::Sequential(torch::nn::Linear(1, 200), torch::nn::Tanh(), torch::nn::Linear(200, 1));
    };
    std::atomic<size_t> count = 0;
    one.config.callbacks = {
        std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchEnd}, [&](Trainer& trainer) {
          std::set<const void*> memory;
          for (const torch::Tensor& parameter : trainer.model().module()->parameters()) {
            memory.insert(parameter.grad().storage().data());
          }
          count = memory.size();
        })};
    one.run();
    return count.load();
  };
  constexpr double kKilobyte = 0.001;
  EXPECT_EQ(buckets("usual", {}, {}), 1u);
  EXPECT_EQ(buckets("small", kKilobyte, {}), 3u);
  EXPECT_EQ(buckets("small-first", {}, kKilobyte), 2u);
  EXPECT_EQ(buckets("large-first", kKilobyte, 1), 1u);
}

// The first step teaches which parameters are used; without static_graph an unused one is an error.
TEST_F(TrainerLimitsTest, StaticGraphReachesTheReduction) {
  const auto run = [this](const std::string& name, bool is_static, int64_t forwards_without) {
    Training one = training(name);
    one.ranks = 2;
    one.config.max_iter = 2;
    one.config.static_graph = is_static;
    std::atomic<int64_t> forwards = 0;  // of both ranks, which make each step together
    one.loss = [&](const Batch& batch, const Model& model) -> LossResult {
      const bool uses_all = forwards++ >= forwards_without;
      const auto& layers = dynamic_cast<const torch::nn::SequentialImpl&>(*model.module());
      return uses_all ? mse(batch, model)
                      : layers.ptr<torch::nn::LinearImpl>(0)->forward(batch.data()).mean();
    };
    one.run();
  };
  run("static", true, /*forwards_without=*/1000);
  EXPECT_THAT([&] { run("changes", true, /*forwards_without=*/4); },
              ThrowsMessage<ConfigError>(
                  HasSubstr("static_graph: a parameter that the first step did not use got a gradient")));
  EXPECT_THAT([&] { run("dynamic", false, 1000); },
              ThrowsMessage<ConfigError>(Not(HasSubstr("static_graph"))));
}

TEST_F(TrainerLimitsTest, SyncBatchNormNormalisesOverTheBatchesOfAllRanks) {
  const auto run = [this](const std::string& name, int ranks, bool sync) {
    Training one = training(name);
    one.ranks = ranks;
    one.batch_norm = true;
    one.loader = {.batch_size = 32 / ranks, .shuffle = false};
    one.config.max_iter = 3;
    one.config.sync_batch_norm = sync;
    // Without synchronisation the ranks' running statistics differ until an evaluation.
    one.fit = [](Trainer& trainer, const Loader& data) {
      FitResult result = trainer.fit(data);
      trainer.test(data);
      return result;
    };
    return one.run();
  };
  const auto whole = run("one", 1, false);
  test::expect_close_weights(whole, run("two", 2, true), 1e-6);
  const auto separate = run("separate", 2, false);
  EXPECT_FALSE(torch::allclose(whole.weights.front(), separate.weights.front(), 1e-6, 1e-7));
}

// --- counted metrics ---

TEST_F(TrainerLimitsTest, F1IsExactOverBatchesAndRanks) {
  const auto labels = std::make_shared<TensorDataset>(std::vector<torch::Tensor>{
      torch::tensor({-1.0, -1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0}, torch::kFloat64).reshape({-1, 1}),
      torch::tensor({0, 0, 1, 0, 1, 1, 1, 0, 0}, torch::kLong)});
  for (const int ranks : {1, 2, 3}) {
    Training one = training(fmt::format("f1-{}", ranks));
    one.ranks = ranks;
    one.config.max_iter = 1;
    // The score of class 1 is the input, and the model only takes part in the loss.
    one.loss = [](const Batch& batch, const Model& model) -> LossResult {
      const torch::Tensor x = batch.data();
      if (batch.target().is_floating_point()) return mse(batch, model);
      const torch::Tensor scores = torch::cat({-x, x}, 1);
      LossResult result{model(x).mean()};
      result.metrics["top1"] = top_k_accuracy(scores, batch.target(), 1);
      result.counts["f1"] = f1_counts(scores, batch.target());
      return result;
    };
    one.fit = [&](Trainer& trainer, const Loader& data) {
      const Evaluation evaluation = trainer.test(Loader(labels, {.batch_size = 2}));
      // Class 0: 4 of 5 predictions and of 5 targets are right; class 1: 3 of 4 and of 4.
      EXPECT_NEAR(evaluation.metrics.at("f1"), (0.8 + 0.75) / 2, 1e-12) << ranks;
      EXPECT_NEAR(evaluation.metrics.at("top1"), 7.0 / 9, 1e-7);
      return trainer.fit(data);
    };
    one.run();
  }
}

}  // namespace
}  // namespace lockstep
