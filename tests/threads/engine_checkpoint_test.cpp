// An engine's checkpoints: saved at one stage on some ranks, loaded at another on others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/deepspeed.h>
#include <lockstep/error.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include "support/block_net.h"
#include "support/config_error.h"
#include "support/group_case.h"
#include "support/overflow_schedule.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::BlockNet;
using test::error_of;
using test::formula;
using test::parameters_of;
using test::run_group;
using test::same_bits;
using test::TemporaryFolder;
using testing::HasSubstr;

enum class Precision { kFp32, kBf16, kFp16 };

DeepSpeedConfig config(int stage, Precision precision, const std::string& more = "") {
  const char* dtype = precision == Precision::kFp32 ? ""
                      : precision == Precision::kBf16
                          ? "bf16: {enabled: true}, "
                          : "fp16: {enabled: true, initial_scale_power: 8, loss_scale_window: 3}, ";
  return DeepSpeedConfig::from_text("{train_micro_batch_size_per_gpu: 4, " + std::string(dtype) + more +
                                        R"(optimizer: {type: "AdamW", params: {lr: 0.01, weight_decay: 0.01}},
             scheduler: {type: "WarmupLR", params: {warmup_num_steps: 10}},
             zero_optimization: {stage: )" +
                                        std::to_string(stage) +
                                        ", reduce_bucket_size: 75, stage3_param_persistence_threshold: 9}}",
                                    "ds.json");
}

// The same on all ranks, so that any number of ranks that is a power of two has the same mean.
void train(Engine<test::BlockNetImpl>& engine, int steps) {
  const at::ScalarType dtype = engine->in->weight.scalar_type();
  for (int i = 0; i < steps; ++i) {
    const auto x = formula({4, 3}, engine.global_steps()).to(dtype);
    engine.backward(engine.forward(x).square().mean());
    engine.step();
  }
}

at::Tensor mse_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}

std::vector<int> hosts(int ranks) { return std::vector<int>(static_cast<size_t>(ranks), 0); }

class EngineCheckpointTest : public testing::TestWithParam<Precision> {};

TEST_P(EngineCheckpointTest, LoadsAtAnyStageOnOtherRanks) {
  const Precision precision = GetParam();
  const TemporaryFolder folder;
  std::vector<at::Tensor> expected;  // of seven steps without a stop
  double expected_lr = 0;
  run_group({"shm", hosts(1)}, [&](Communicator& group) {
    BlockNet net;
    auto engine = initialize(net, config(0, precision, "prescale_gradients: true, "), group);
    train(engine, 7);
    expected = parameters_of(engine);
    expected_lr = engine.get_lr()[0];
  });
  for (int saving = 0; saving <= 3; ++saving) {
    const std::string tag = "stage" + std::to_string(saving);
    run_group({"shm", hosts(2)}, [&](Communicator& group) {
      BlockNet net;
      auto engine = initialize(net, config(saving, precision, "prescale_gradients: true, "), group);
      train(engine, 4);
      const auto path =
          engine.save_checkpoint(folder.path(), {.tag = tag, .client_state = R"({"epoch": 2})"});
      EXPECT_TRUE(std::filesystem::exists(path / "manifest.json"));
    });
    for (int loading = 0; loading <= 3; ++loading) {
      for (const int ranks : {1, 4}) {
        run_group({"shm", hosts(ranks)}, [&](Communicator& group) {
          BlockNet net;
          auto engine = initialize(net, config(loading, precision, "prescale_gradients: true, "), group);
          const auto loaded = engine.load_checkpoint(folder.path(), {.tag = tag});
          ASSERT_TRUE(loaded);
          EXPECT_EQ(loaded->client_state, R"({"epoch":2})");
          EXPECT_EQ(engine.global_steps(), 4);
          EXPECT_EQ(engine.global_samples(), 4 * 4 * 2);
          train(engine, 3);
          EXPECT_EQ(engine.get_lr()[0], expected_lr);
          const auto actual = parameters_of(engine);
          for (size_t i = 0; i < actual.size(); ++i) {
            EXPECT_TRUE(torch::allclose(actual[i].to(at::kFloat), expected[i].to(at::kFloat), 1e-5, 1e-6))
                << "saved at stage " << saving << ", loaded at " << loading << " on " << ranks
                << " ranks: " << i;
          }
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, EngineCheckpointTest,
                         testing::Values(Precision::kFp32, Precision::kBf16, Precision::kFp16),
                         [](const auto& info) {
                           return info.param == Precision::kFp32   ? "fp32"
                                  : info.param == Precision::kBf16 ? "bf16"
                                                                   : "fp16";
                         });

TEST(EngineSavingTest, TheSameStageAndRanksGoOnBitForBit) {
  for (int stage = 0; stage <= 3; ++stage) {
    const TemporaryFolder folder;
    run_group({"shm", hosts(2)}, [&](Communicator& group) {
      BlockNet whole;
      auto straight = initialize(whole, config(stage, Precision::kFp16), group);
      train(straight, 8);
      {
        BlockNet net;
        auto engine = initialize(net, config(stage, Precision::kFp16), group);
        train(engine, 5);
        engine.save_checkpoint(folder.path());
      }
      BlockNet net;
      auto engine = initialize(net, config(stage, Precision::kFp16), group);
      ASSERT_TRUE(engine.load_checkpoint(folder.path()));
      EXPECT_EQ(engine.loss_scale(), 512) << "doubled once";
      train(engine, 3);
      EXPECT_EQ(engine.loss_scale(), straight.loss_scale());
      const auto actual = parameters_of(engine);
      const auto expected = parameters_of(straight);
      for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << i;
    });
  }
}

TEST(EngineSavingTest, LambsStateIsRankZeros) {
  const TemporaryFolder folder;
  run_group({"shm", hosts(2)}, [&](Communicator& group) {
    const auto file = DeepSpeedConfig::from_text(
        R"({train_micro_batch_size_per_gpu: 4, optimizer: {type: "Lamb", params: {lr: 0.01}}})", "ds.json");
    BlockNet whole;
    auto straight = initialize(whole, file, group);
    train(straight, 3);
    straight.save_checkpoint(folder.path());
    train(straight, 3);
    BlockNet net;
    auto engine = initialize(net, file, group);
    ASSERT_TRUE(engine.load_checkpoint(folder.path()));
    train(engine, 3);
    EXPECT_TRUE(same_bits(net->out->weight, whole->out->weight));
  });
}

TEST(EngineSavingTest, WeightsAlone) {
  const TemporaryFolder folder;
  run_group({"shm", hosts(2)}, [&](Communicator& group) {
    BlockNet whole;
    auto first = initialize(whole, config(2, Precision::kFp32), group);
    train(first, 3);
    first.save_checkpoint(folder.path());
    BlockNet net;
    auto engine = initialize(net, config(1, Precision::kFp32), group);
    ASSERT_TRUE(engine.load_checkpoint(folder.path(), {.load_module_only = true}));
    EXPECT_EQ(engine.global_steps(), 0);
    EXPECT_TRUE(same_bits(net->out->weight, whole->out->weight));
  });
}

// One format: a trainer's run goes on as an engine, and an engine's weights as a trainer's.
TEST(EngineSavingTest, TheTrainersCheckpointsAreTheSame) {
  const TemporaryFolder folder;
  const auto make_net = [] {
    torch::nn::Sequential net(torch::nn::Linear(1, 6), torch::nn::Tanh(), torch::nn::Linear(6, 1));
    test::set_parameters(*net);
    return net;
  };
  TrainConfig train_config = test::quiet_config(folder.path() / "run");
  train_config.dtype = "float32";
  train_config.max_iter = 3;
  train_config.checkpoint_every = 1;
  World world(RankMap{}, Communicator(), torch::kCPU);
  torch::nn::Sequential trained = make_net();
  torch::optim::AdamW optimizer(trained->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0));
  const auto x = formula({16, 1}, 1);
  Trainer trainer(world, trained, optimizer, train_config, mse);
  const FitResult result = trainer.fit(Loader(TensorDataset({x, x.square()}), {.batch_size = 16}));

  run_group({"shm", hosts(2)}, [&](Communicator& group) {
    torch::nn::Sequential net = make_net();
    auto engine =
        initialize(net,
                   DeepSpeedConfig::from_text(
                       R"({train_batch_size: 16, gradient_clipping: 0, zero_optimization: {stage: 2},
                                 optimizer: {type: "AdamW", params: {lr: 0.01}}})",
                       "ds.json"),
                   group);
    const auto loaded = engine.load_checkpoint(result.run_folder);
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->client_state, "null");
    EXPECT_EQ(engine.global_steps(), 3);
    const auto weights = trained->parameters();
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(same_bits(net->parameters()[i], weights[i]));
    const auto half = x.slice(0, 8 * group.rank(), 8 * group.rank() + 8);
    engine.backward(mse_of(engine.forward(half), half.square()));
    engine.step();
    engine.save_checkpoint(folder.path() / "engine");
    if (group.rank() == 0) {
      // The optimizer went on, too: the fourth step of AdamW, by hand.
      trained->zero_grad();
      mse_of(trained->forward(x), x.square()).backward();
      optimizer.step();
    }
    group.barrier();
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TRUE(torch::allclose(net->parameters()[i], weights[i], 1e-4, 1e-6)) << i;
    }
  });
  torch::nn::Sequential read = make_net();
  load_weights(*read, folder.path() / "engine");
  EXPECT_TRUE(torch::allclose(read->parameters()[0], trained->parameters()[0], 1e-4, 1e-6));
}

TEST(EngineSavingTest, NothingToLoad) {
  const TemporaryFolder folder;
  run_group({"shm", hosts(2)}, [&](Communicator& group) {
    BlockNet net;
    auto engine = initialize(net, config(1, Precision::kFp32), group);
    EXPECT_FALSE(engine.load_checkpoint(folder.path() / "none"));
  });
}

TEST(EngineSavingTest, WhatWouldLoseSomethingIsRefused) {
  const TemporaryFolder folder;
  run_group({"shm", hosts(2)}, [&](Communicator& group) {
    BlockNet net;
    auto engine =
        initialize(net,
                   config(1, Precision::kFp32,
                          "gradient_accumulation_steps: 2, checkpoint: {tag_validation: \"Fail\"}, "),
                   group);
    engine.backward(engine.forward(formula({4, 3}, 1)).square().mean());
    engine.step();
    EXPECT_THAT(error_of([&] { engine.save_checkpoint(folder.path()); }), HasSubstr("1 backwards of a step"));
    engine.backward(engine.forward(formula({4, 3}, 1)).square().mean());
    engine.step();
    EXPECT_THAT(error_of([&] { engine.save_checkpoint(folder.path(), {.tag = "a/b"}); }),
                HasSubstr("one folder"));
    EXPECT_THAT(error_of([&] { engine.save_checkpoint(""); }), HasSubstr("needs a folder"));
    EXPECT_THAT(error_of([&] { engine.save_checkpoint(folder.path(), {.client_state = "{"}); }),
                HasSubstr("no JSON"));
    EXPECT_THAT(error_of([&] {
                  engine.save_checkpoint(folder.path(), {.tag = "rank" + std::to_string(group.rank())});
                }),
                HasSubstr("different tags, rank 0 first: 'rank0', 'rank1'"));
    engine.save_checkpoint(folder.path(), {.tag = "good"});
  });
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "good"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "rank0"));
}

TEST(EngineSavingTest, ARankThatSavesAloneIsToldWhoDidNotCome) {
  const TemporaryFolder folder;
  run_group({"shm", hosts(3)}, [&](Communicator& group) {
    BlockNet net;
    auto engine = initialize(net, config(1, Precision::kFp32), group);
    if (group.rank() == 0) {
      EXPECT_THAT(error_of([&] {
                    engine.save_checkpoint(folder.path(), {.patience = std::chrono::milliseconds(100)});
                  }),
                  HasSubstr("save_checkpoint(): ranks 1, 2 did not come within 0.1 s"));
    }
    group.barrier();
  });
}

TEST(EngineSavingTest, WholeWeightsInTheModelsDtype) {
  const TemporaryFolder folder;
  for (int stage = 0; stage <= 3; ++stage) {
    run_group({"shm", hosts(2)}, [&](Communicator& group) {
      BlockNet net;
      DeepSpeedConfig file = config(stage, Precision::kBf16);
      {
        auto engine = initialize(net, file, group);
        EXPECT_EQ(engine.save_16bit_model(folder.path() / "without"), stage < 3);
      }
      file.zero.gather_16bit_weights_on_model_save = true;
      BlockNet trained;
      auto engine = initialize(trained, file, group);
      train(engine, 2);
      ASSERT_TRUE(engine.save_16bit_model(folder.path() / "with"));
      const auto expected = parameters_of(engine);
      group.barrier();
      BlockNet read;
      read->to(at::kBFloat16);
      load_weights(*read, folder.path() / "with" / "model.safetensors");
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(read->parameters()[i], expected[i]));
      group.barrier();
    });
  }
}

}  // namespace
}  // namespace lockstep
