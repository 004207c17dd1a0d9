// Steps that are recorded and replayed against the same steps one by one.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <set>

#include "comm/plugin.h"
#include "support/config_error.h"
#include "support/gpu.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::Training;

// Convolutions and batch norm, as in the cifar100 recipe.
struct PictureNetImpl : torch::nn::Module {
  PictureNetImpl()
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(16))),
        out(register_module("out", torch::nn::Linear(16, 1))) {}
  torch::Tensor forward(torch::Tensor x) {
    // [n, 1] as n pictures of waves.
    const at::Tensor waves = torch::arange(1, 8 * 64 + 1, x.options()) * 0.05;
    x = torch::sin(x * waves).view({-1, 8, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
    return out(torch::relu(norm(conv(x))).mean({2, 3}));
  }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
  torch::nn::Linear out;
};
TORCH_MODULE(PictureNet);

class GpuGraphTest : public test::GpuTest {
 protected:
  Training training(const std::string& precision, bool graph) const {
    Training training;
    training.device = device();
    training.samples = 70;  // the last batch of an epoch has six: it is not replayed
    training.config =
        test::quiet_config(folder_.path() / fmt::format("{}-{}", precision, graph ? "graph" : "eager"));
    training.config.max_iter = 5;
    training.config.dtype = "float32";
    training.config.precision = precision;
    training.config.clip_grad_norm = 1;
    training.config.cuda_graph = graph;
    return training;
  }

  test::TemporaryFolder folder_{"/dev/shm"};
};

std::vector<std::shared_ptr<Callback>> cosine() {
  return {std::make_shared<ScheduleLearningRate>(cosine_annealing({.t_max = 25}),
                                                 ScheduleLearningRate::Per::kStep)};
}

TEST_F(GpuGraphTest, EqualsEagerStepsToRounding) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    for (const bool pictures : {false, true}) {
      for (const bool adam : {false, true}) {
        SCOPED_TRACE(fmt::format("{} pictures {} adam {}", precision, pictures, adam));
        std::vector<Training::Outcome> outcomes;
        for (const bool graph : {false, true}) {
          Training one = training(precision, graph);
          one.config.log_folder += fmt::format("-{}-{}", pictures, adam);
          if (pictures) one.make_model = [] { return Model(PictureNet()); };
          if (adam) {
            one.make_optimizer = [](std::vector<torch::Tensor> parameters) {
              return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
            };
          }
          one.make_callbacks = cosine;  // the learning rate changes under the record
          outcomes.push_back(one.run());
        }
        EXPECT_EQ(outcomes[0].result.steps, 25);
        EXPECT_EQ(outcomes[1].result.steps, 25);
        EXPECT_EQ(outcomes[1].result.skipped_steps, outcomes[0].result.skipped_steps);
        // Convolutions in fp32 take TF32, with 11 bits; bf16 has 8.
        const double tolerance = std::string(precision) == "fp32" ? 2e-3 : 2e-2;
        EXPECT_NEAR(outcomes[1].result.train_loss, outcomes[0].result.train_loss,
                    tolerance * std::abs(outcomes[0].result.train_loss));
        for (size_t i = 0; i < outcomes[0].weights.size(); ++i) {
          EXPECT_TRUE(torch::allclose(outcomes[1].weights[i], outcomes[0].weights[i], tolerance, tolerance))
              << "parameter or buffer " << i;
        }
      }
    }
  }
}

TEST_F(GpuGraphTest, OverflowsAreSkippedInTheRecord) {
  std::vector<Training::Outcome> outcomes;
  for (const bool graph : {false, true}) {
    Training one = training("fp16", graph);
    one.loss = [](const Batch& batch, const Model& model) { return LossResult(mse(batch, model) * 4096); };
    one.config.clip_grad_norm = 0;
    one.make_optimizer = [](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1e-5));
    };
    outcomes.push_back(one.run());
  }
  EXPECT_GT(outcomes[0].result.skipped_steps, 4) << "the record has skipped nothing";
  EXPECT_EQ(outcomes[1].result.skipped_steps, outcomes[0].result.skipped_steps);
  test::expect_close_weights(outcomes[1], outcomes[0], 1e-2);
}

// The generator moves on with every replay: another mask each time.
TEST_F(GpuGraphTest, DropoutIsNotTheSameEveryStep) {
  Training one = training("fp32", true);
  one.samples = 64;
  one.config.max_iter = 10;
  std::vector<double> kept;
  one.loss = [](const Batch& batch, const Model& model) {
    const at::Tensor ones = torch::dropout(torch::ones_like(batch.data()), 0.5, /*train=*/true);
    return LossResult(mse(batch, model), {{"kept", ones.mean()}});
  };
  one.make_callbacks = [&] {
    return std::vector<std::shared_ptr<Callback>>{
        std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainEpochEnd},
                                   [&](Trainer& trainer) { kept.push_back(trainer.metric("train_kept")); })};
  };
  one.run();
  ASSERT_EQ(kept.size(), 10U);
  // Epochs from the third on are replays only.
  EXPECT_GT(std::set<double>(kept.begin() + 2, kept.end()).size(), 3U);
}

// Several buckets of gradients, whose collectives are part of the record.
TEST_F(GpuGraphTest, RecordedStepsOverNcclTwoRanks) {
  run_nccl(2, [&](World& world) {
    comm::use_own_cuda_stream(device().index());
    const std::filesystem::path shared = shared_folder(world);
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      SCOPED_TRACE(precision);
      std::vector<Training::Outcome> outcomes;
      for (const bool graph : {false, true}) {
        Training one = training(precision, graph);
        one.samples = 70;  // 35 a rank: the last batch of an epoch is not replayed
        one.config.max_iter = 4;
        one.config.log_folder = (shared / fmt::format("{}-{}", precision, graph)).string();
        one.make_model = [] {
          return Model(torch::nn::Sequential(torch::nn::Linear(1, 1024), torch::nn::Tanh(),
                                             torch::nn::Linear(1024, 1024), torch::nn::Tanh(),
                                             torch::nn::Linear(1024, 1)));
        };
        one.make_optimizer = [](std::vector<torch::Tensor> parameters) {
          return std::make_unique<torch::optim::SGD>(parameters,
                                                     torch::optim::SGDOptions(1e-4).momentum(0.9));
        };
        one.make_callbacks = cosine;
        outcomes.push_back(one.run_rank(world));
      }
      EXPECT_GT(outcomes[0].result.steps, 8) << "nothing is replayed";
      EXPECT_EQ(outcomes[1].result.steps, outcomes[0].result.steps);
      EXPECT_EQ(outcomes[1].result.skipped_steps, outcomes[0].result.skipped_steps);
      test::expect_close_weights(outcomes[1], outcomes[0], std::string(precision) == "fp32" ? 2e-3 : 2e-2);
      for (const at::Tensor& weight : outcomes[1].weights) {
        const at::Tensor own = weight.to(device());
        const at::Tensor first = own.clone();
        world.communicator().broadcast(first).wait();
        EXPECT_TRUE(torch::equal(own, first)) << "ranks differ";
      }
    }
  });
}

// An overflow of one rank: the kernels of both skip the step, also in the record.
TEST_F(GpuGraphTest, OverflowsOfOneRankInTheRecordOverNcclTwoRanks) {
  run_nccl(2, [&](World& world) {
    comm::use_own_cuda_stream(device().index());
    const std::filesystem::path shared = shared_folder(world);
    std::vector<Training::Outcome> outcomes;
    for (const bool graph : {false, true}) {
      Training one = training("fp16", graph);
      one.samples = 128;
      one.config.max_iter = 6;
      one.config.clip_grad_norm = 0;
      one.config.log_folder = (shared / (graph ? "graph" : "eager")).string();
      one.loss = [&world](const Batch& batch, const Model& model) {
        return LossResult(mse(batch, model) * (world.rank() == 1 ? 256 : 1));
      };
      one.make_optimizer = [](std::vector<torch::Tensor> parameters) {
        return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1e-5));
      };
      outcomes.push_back(one.run_rank(world));
    }
    EXPECT_GT(outcomes[0].result.skipped_steps, 4) << "the record has skipped nothing";
    EXPECT_LT(outcomes[0].result.skipped_steps, outcomes[0].result.steps);
    EXPECT_EQ(outcomes[1].result.skipped_steps, outcomes[0].result.skipped_steps);
    test::expect_close_weights(outcomes[1], outcomes[0], 1e-2);
  });
}

// No call starts the collectives of a replay; they are watched all the same.
TEST_F(GpuGraphTest, AStalledRankInTheRecordOverNcclTwoRanks) {
  run_nccl(test::RankProcesses{.size = 2, .stalled = 1}, std::chrono::seconds(5), [&](World& world) {
    comm::use_own_cuda_stream(device().index());
    Training one = training("fp32", true);
    one.samples = 128;
    one.config.max_iter = 100;
    one.config.log_folder = (shared_folder(world) / "run").string();
    int64_t begun = 0;
    one.make_callbacks = [&] {
      return std::vector<std::shared_ptr<Callback>>{
          std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchStart}, [&](Trainer&) {
            while (world.rank() == 1 && begun == 10) ::pause();
            ++begun;
          })};
    };
    try {
      one.run_rank(world);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("rank 1 did not take part"));
      EXPECT_EQ(error.failed_rank(), 1);
    }
  });
}

// In a process of its own, which has a broken record afterwards.
TEST_F(GpuGraphTest, AStepThatReadsAValueIsRefused) {
  run_processes(1, [&](World&) {
    Training one = training("fp32", true);
    one.loss = [](const Batch& batch, const Model& model) {
      const at::Tensor loss = mse(batch, model);
      return LossResult(loss * (loss.item<double>() > 1e9 ? 2 : 1));
    };
    EXPECT_THAT(test::error_of([&] { one.run(); }), testing::HasSubstr("the step cannot be recorded"));
  });
}

}  // namespace
}  // namespace lockstep
