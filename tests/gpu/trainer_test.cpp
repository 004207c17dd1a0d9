// The trainer on a GPU: its numbers, its precisions, its checkpoints, and what the host waits
// for.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "support/gpu.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::NoHostWait;
using test::Training;

constexpr int64_t kTrainerSteps = 24;  // six epochs of four steps

class GpuTrainerTest : public test::GpuTest {
 protected:
  Training training(const std::string& name, const std::string& precision = "fp32") const {
    Training training;
    training.device = device();
    training.config = test::quiet_config(folder_.path() / name);
    training.config.max_iter = 6;
    training.config.dtype = "float32";
    training.config.precision = precision;
    return training;
  }

  // Stopped after some of its steps, and gone on.
  void expect_same_when_resumed(Training training, const std::string& name) const {
    training.config.checkpoint_every_steps = 1;
    training.config.checkpoint_keep = 1000;
    const Training::Outcome whole = training.run();
    ASSERT_EQ(whole.result.steps, kTrainerSteps);
    for (const int64_t step : {1, 6, 8, 23}) {
      Training rest = training;
      rest.config.resume = (folder_.path() / name / fmt::format("checkpoints/step-{:010}", step)).string();
      rest.config.log_folder = (folder_.path() / fmt::format("{}-{}", name, step)).string();
      rest.config.checkpoint_every_steps = 0;
      const Training::Outcome outcome = rest.run();
      SCOPED_TRACE(fmt::format("{} from step {}", name, step));
      EXPECT_EQ(outcome.result.steps, kTrainerSteps);
      EXPECT_EQ(outcome.result.train_loss, whole.result.train_loss);
      EXPECT_EQ(outcome.result.skipped_steps, whole.result.skipped_steps);
      test::expect_equal_weights(outcome, whole);
    }
  }

  // 24 samples a step, on however many ranks, in float64: the same training to rounding.
  static Training joined(const std::filesystem::path& folder, int ranks, int stage) {
    Training training;
    training.config = test::quiet_config(folder);
    training.config.max_iter = 2;
    training.samples = 96;
    training.loader.batch_size = 24 / ranks;
    training.make_optimizer = [](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.02));
    };
    training.config.zero.stage = stage;
    training.config.zero.persistence_threshold = 2;
    training.config.clip_grad_norm = 0.7;
    return training;
  }

  test::TemporaryFolder folder_{"/dev/shm"};
};

// Half of the losses' gradients overflow at fp16's first scale.
LossResult large_loss(const Batch& batch, const Model& model) { return mse(batch, model) * 64; }

std::unique_ptr<torch::optim::Optimizer> make_adam(std::vector<torch::Tensor> parameters) {
  return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
}

// For the large loss.
std::unique_ptr<torch::optim::Optimizer> make_slow_sgd(std::vector<torch::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(5e-4).momentum(0.9));
}

TEST_F(GpuTrainerTest, EndsWhereTheCpuEnds) {
  for (const bool adam : {false, true}) {
    Training gpu = training(adam ? "adam" : "sgd");
    gpu.config.dtype = "float64";
    gpu.config.clip_grad_norm = 0.5;
    gpu.config.accumulate_steps = 2;
    gpu.config.ema_decay = 0.9;
    // What is before a norm has a gradient of rounding alone, which Adam makes as large as any.
    gpu.batch_norm = !adam;
    if (adam) gpu.make_optimizer = make_adam;
    Training cpu = gpu;
    cpu.device = c10::kCPU;
    cpu.config.log_folder += "-cpu";
    const Training::Outcome ours = gpu.run();
    const Training::Outcome theirs = cpu.run();
    EXPECT_EQ(ours.result.steps, theirs.result.steps);
    EXPECT_NEAR(ours.result.train_loss, theirs.result.train_loss, 1e-9);
    test::expect_close_weights(ours, theirs, 1e-8);
  }
}

TEST_F(GpuTrainerTest, ATrainingOfAProgramLogsItsGpu) {
  training("logged").run();
  std::ifstream log(folder_.path() / "logged" / "gpu.csv");
  std::string heading;
  std::getline(log, heading);
  EXPECT_EQ(heading.find("utilization.gpu") != std::string::npos, !device().is_cpu()) << heading;
  Training silent = training("silent");
  silent.config.gpu_log_every = 0;
  silent.run();
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "silent" / "gpu.csv"));
}

TEST_F(GpuTrainerTest, LearnsInEveryPrecision) {
  Training reference = training("reference");
  reference.config.max_iter = 40;
  reference.make_optimizer = make_adam;
  const double expected = reference.run().result.train_loss;
  Training short_one = training("short");
  short_one.config.max_iter = 1;
  short_one.make_optimizer = make_adam;
  const double before = short_one.run().result.train_loss;
  ASSERT_LT(expected, before / 2) << "nothing is learned";
  for (const char* precision : {"bf16", "fp16"}) {
    Training mixed = training(precision, precision);
    mixed.config.max_iter = 40;
    mixed.make_optimizer = make_adam;
    const FitResult result = mixed.run().result;
    EXPECT_NEAR(result.train_loss, expected, 0.05 * before) << precision;
    EXPECT_LT(result.skipped_steps, 20) << precision;
  }
}

// By the kernels, which look themselves; and by the host, which asks.
TEST_F(GpuTrainerTest, CountsTheStepsThatOverflow) {
  Training fused = training("fused", "fp16");
  fused.loss = large_loss;
  fused.make_optimizer = make_slow_sgd;
  Training asked = fused;
  asked.config.log_folder += "-asked";
  asked.config.fused_optimizer = false;
  const Training::Outcome ours = fused.run();
  const Training::Outcome theirs = asked.run();
  EXPECT_GT(ours.result.skipped_steps, 0) << "nothing has overflowed";
  EXPECT_LT(ours.result.skipped_steps, kTrainerSteps);
  EXPECT_EQ(ours.result.skipped_steps, theirs.result.skipped_steps);
  test::expect_close_weights(ours, theirs, 1e-2);
}

// The generator of the GPU draws what is dropped.
TEST_F(GpuTrainerTest, ResumesBitForBitWithTheGeneratorOfTheGpu) {
  Training one = training("dropout");
  one.dropout = 0.3;
  one.make_optimizer = make_adam;
  expect_same_when_resumed(one, "dropout");
  Training other = training("dropout");
  other.config.log_folder += "-seed";
  other.config.seed = 1;
  other.dropout = 0.3;
  other.make_optimizer = make_adam;
  Training first = one;
  first.config.log_folder += "-again";
  EXPECT_FALSE(torch::equal(first.run().weights[0], other.run().weights[0])) << "nothing is dropped";
}

TEST_F(GpuTrainerTest, ResumesBitForBitInMixedPrecision) {
  for (const char* precision : {"bf16", "fp16"}) {
    Training one = training(precision, precision);
    one.loss = large_loss;
    one.make_optimizer = make_slow_sgd;
    one.batch_norm = true;
    expect_same_when_resumed(one, precision);
  }
}

TEST_F(GpuTrainerTest, EveryStageOverNcclTwoRanks) {
  run_nccl(2, [&](World& world) {
    Training alone = joined(folder_.path() / "alone", 1, 0);
    alone.device = device();
    const Training::Outcome expected = alone.run();
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(fmt::format("stage {}", stage));
      const Training two = joined(shared_folder(world) / fmt::format("stage{}", stage), 2, stage);
      const Training::Outcome actual = two.run_rank(world);
      EXPECT_EQ(actual.result.steps, expected.result.steps);
      EXPECT_NEAR(actual.result.train_loss, expected.result.train_loss, 1e-9);
      test::expect_close_weights(actual, expected, 1e-8);
    }
  });
}

std::map<int64_t, double> values_in_rows(const std::filesystem::path& folder, const std::string& name) {
  std::map<int64_t, double> found;
  std::ifstream file(folder / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::json::parse(line);
    if (row.contains("step") && row.contains(name)) found[row["step"]] = row[name];
  }
  return found;
}

// NCCL takes no tensors of the host, where such a loss is, and that of a search.
TEST_F(GpuTrainerTest, LossesOnTheHostHaveRowsOverNcclTwoRanks) {
  run_nccl(2, [&](World& world) {
    const auto folder = shared_folder(world) / "host";
    Training two = joined(folder, 2, 0);
    two.loss = [](const Batch& batch, const Model& model) { return LossResult(mse(batch, model).cpu()); };
    const auto steps = static_cast<size_t>(two.run_rank(world).result.steps);
    if (world.is_main()) EXPECT_EQ(values_in_rows(folder, "step_loss").size(), steps);

    torch::nn::Linear model(1, 1);
    model->to(world.device(), torch::kFloat64);
    const auto search = make_cma_es(get_parameters(*model), {.sigma = 0.5, .seed = 3});
    TrainConfig config = test::quiet_config(shared_folder(world) / "search");
    config.max_iter = 2;
    const auto x = torch::linspace(-1, 1, 32, torch::kFloat64).reshape({-1, 1});
    const Loader data(TensorDataset({x, 3 * x - 1}), {.batch_size = 8});
    Trainer(world, model, *search, config).fit(data);
    if (world.is_main()) {
      EXPECT_EQ(values_in_rows(shared_folder(world) / "search", "step_loss").size(), 8u);
    }
  });
}

// The rows after its first one, of which the ranks learn of it, and only on one rank.
TEST_F(GpuTrainerTest, AMetricThatAppearsLaterHasRowsOverNcclTwoRanks) {
  run_nccl(2, [&](World& world) {
    const auto folder = shared_folder(world) / "later";
    Training two = joined(folder, 2, 0);
    two.config.log_every = 1;
    int64_t step = 0;
    two.loss = [&](const Batch& batch, const Model& model) {
      LossResult result(mse(batch, model));
      if (++step >= 3 && !world.is_main()) {
        result.metrics.emplace("late", torch::full({}, step, result.loss.options().requires_grad(false)));
      }
      return result;
    };
    const int64_t steps = two.run_rank(world).result.steps;
    if (!world.is_main()) return;
    const auto late = values_in_rows(folder, "step_late");
    EXPECT_EQ(late.size(), static_cast<size_t>(steps - 3));
    for (const auto& [at, value] : late) EXPECT_EQ(value, static_cast<double>(at));
  });
}

// An epoch on four ranks, on two, on one, and on four again, each at another stage.
TEST_F(GpuTrainerTest, ResumesOnOtherNumbersOfRanksOverNcclFourRanks) {
  run_nccl(4, [&](World& world) {
    int64_t epochs = 0;
    Training::Outcome last;
    const auto go_on = [&](const std::vector<int>& ranks, int stage) {
      ++epochs;
      on_ranks(world, ranks, [&](World& part) {
        Training training = joined(shared_folder(world) / "run", part.size(), stage);
        training.config.max_iter = epochs;
        training.config.checkpoint_every = 1;
        last = training.run_rank(part);
        EXPECT_EQ(last.result.steps, 4 * epochs);
      });
    };
    go_on({0, 1, 2, 3}, 3);
    go_on({0, 1}, 1);
    go_on({0}, 0);
    go_on({0, 1, 2, 3}, 2);
    Training alone = joined(folder_.path() / "alone", 1, 0);
    alone.device = device();
    alone.config.max_iter = epochs;
    test::expect_close_weights(last, alone.run(), 1e-8);
  });
}

// From the second batch of an epoch to its last no step waits for the GPU: data are copied
// ahead, metrics are added up there, and an overflow is its own business.
class Waits {
 public:
  explicit Waits(int64_t batches) : batches_(batches) {}

  std::vector<std::shared_ptr<Callback>> callbacks() {
    return {std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchStart},
                                       [this](Trainer&) {
                                         if (++begun_ == kWarmUp) guard_.emplace();
                                       }),
            std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchEnd}, [this](Trainer&) {
              if (begun_ == batches_) guard_.reset();
              ended_ = begun_;
            })};
  }
  int64_t ended() const { return ended_; }

 private:
  static constexpr int64_t kWarmUp = 5;  // with cuda_graph the fourth step is recorded

  const int64_t batches_;
  int64_t begun_ = 0;
  int64_t ended_ = 0;
  std::optional<NoHostWait> guard_;
};

TEST_F(GpuTrainerTest, NoStepWaitsForTheGpu) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    for (const bool graph : {false, true}) {
      SCOPED_TRACE(fmt::format("{}{}", precision, graph ? " graph" : ""));
      Training one = training(fmt::format("{}{}", precision, graph), precision);
      one.samples = 256;
      one.loader.pin_memory = true;
      one.loader.num_workers = 2;
      one.config.max_iter = 1;
      one.config.clip_grad_norm = 1;
      one.config.cuda_graph = graph;
      one.loss = [](const Batch& batch, const Model& model) {
        const at::Tensor loss = mse(batch, model);
        return LossResult(loss, {{"root", loss.detach().sqrt()}});
      };
      Waits waits(16);
      one.make_callbacks = [&] { return waits.callbacks(); };
      const FitResult result = one.run().result;
      EXPECT_EQ(waits.ended(), 16);
      EXPECT_GT(result.metrics.at("train_root"), 0);
    }
  }
}

// Each step has a row, with the norm that the engine computes.
TEST_F(GpuTrainerTest, NoStepOfAnEngineWaitsForTheGpu) {
  Training one = training("engine");
  one.samples = 256;
  one.loader.pin_memory = true;
  one.loader.num_workers = 2;
  one.config.max_iter = 1;
  one.config.log_every = 1;
  one.config.deepspeed_config = (folder_.path() / "engine.json").string();
  std::ofstream(one.config.deepspeed_config) << R"({"gradient_clipping": 1.0})";
  Waits waits(16);
  one.make_callbacks = [&] { return waits.callbacks(); };
  one.run();
  EXPECT_EQ(waits.ended(), 16);
  EXPECT_EQ(values_in_rows(folder_.path() / "engine", "grad_norm").size(), 16u);
}

// The proof that the guard sees anything: metrics that are read at every step.
TEST_F(GpuTrainerTest, MetricsOnTheHostMakeItWait) {
  Training one = training("cpu");
  one.samples = 256;
  one.config.max_iter = 1;
  one.config.log_setup = "cpu";
  Waits waits(16);
  one.make_callbacks = [&] { return waits.callbacks(); };
  try {
    one.run();
    ADD_FAILURE() << "no wait was seen";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("synchronizing CUDA operation"));
  }
  EXPECT_EQ(waits.ended(), 4);
}

}  // namespace
}  // namespace lockstep
