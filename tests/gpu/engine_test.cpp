// Training by a DeepSpeed configuration on a GPU.

#include <gtest/gtest.h>
#include <lockstep/deepspeed.h>
#include <torch/torch.h>

#include <filesystem>
#include <limits>
#include <optional>

#include "support/block_net.h"
#include "support/formula.h"
#include "support/gpu.h"
#include "support/overflow_schedule.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using test::BlockNet;
using test::formula;
using test::parameters_of;
using test::same_bits;

class GpuEngineTest : public test::GpuTest {
 protected:
  static DeepSpeedConfig config(int stage, const std::string& zero, const std::string& more) {
    return DeepSpeedConfig::from_text(
        "{train_micro_batch_size_per_gpu: 4, zero_optimization: {stage: " + std::to_string(stage) +
            ", reduce_bucket_size: 75, stage3_param_persistence_threshold: 9" + zero + "}, " + more + "}",
        "ds.json");
  }
  at::Tensor batch_of(const World& world, int step, at::ScalarType dtype) const {
    return formula({4, 3}, 100 + 10 * step + world.rank()).to(device(), dtype);
  }
  World alone_in_the_world() const { return World(RankMap(), alone(), device()); }

  void expect_schedule(const World& world, int stage, const std::string& zero = "") const;

  using TestEngine = Engine<test::BlockNetImpl>;
  static constexpr int64_t kJoinedBatch = 12;
  static constexpr int kStepsBetweenSaves = 3;

  // One configuration for any world size: a batch of all ranks together.
  static DeepSpeedConfig joined_config(int stage);
  // Some steps, on this rank's part of the batch.
  void train(TestEngine& engine, const Communicator& group) const;
  // Loads what is in `from` (empty: nothing), trains, and saves to `to`; the weights after it.
  std::vector<at::Tensor> resume(const World& world, int stage, const std::filesystem::path& from,
                                 const std::filesystem::path& to) const;
};

DeepSpeedConfig GpuEngineTest::joined_config(int stage) {
  // With this eps rounding stays rounding: Adam's own makes steps of it where gradients vanish.
  return DeepSpeedConfig::from_text(R"({train_batch_size: 12, gradient_clipping: 0.5,
      optimizer: {type: "AdamW", params: {lr: 0.01, eps: 1e-4, weight_decay: 0.01}},
      zero_optimization: {stage: )" + std::to_string(stage) +
                                        ", reduce_bucket_size: 75, stage3_param_persistence_threshold: 9}}",
                                    "ds.json");
}

void GpuEngineTest::train(TestEngine& engine, const Communicator& group) const {
  const int64_t count = kJoinedBatch / group.size();
  for (int step = 0; step < kStepsBetweenSaves; ++step) {
    const at::Tensor x = formula({kJoinedBatch, 3}, 50 + engine.global_steps()).to(device());
    engine.backward(engine.forward(x.narrow(0, count * group.rank(), count)).square().mean());
    engine.step();
  }
}

std::vector<at::Tensor> GpuEngineTest::resume(const World& world, int stage,
                                              const std::filesystem::path& from,
                                              const std::filesystem::path& to) const {
  auto engine = initialize(BlockNet(), joined_config(stage), world);
  if (!from.empty()) {
    EXPECT_TRUE(engine.load_checkpoint(from));
  }
  train(engine, world.communicator());
  engine.save_checkpoint(to);
  return parameters_of(engine);
}

void GpuEngineTest::expect_schedule(const World& world, int stage, const std::string& zero) const {
  SCOPED_TRACE("stage " + std::to_string(stage) + zero);
  BlockNet net;
  auto engine = initialize(net, config(stage, zero, test::kOverflowSchedule + R"(,
                optimizer: {type: "AdamW", params: {lr: 0.1}})"),
                           world);
  test::expect_overflow_schedule(engine, [&](int step) {
    EXPECT_EQ(parameters_of(engine)[0].device(), device());
    return batch_of(world, step, at::kHalf);
  });
}

TEST_F(GpuEngineTest, OverflowsSkipStepsAtEveryStage) {
  const test::TemporaryFolder folder;
  const World world = alone_in_the_world();
  for (int stage = 0; stage <= 3; ++stage) expect_schedule(world, stage);
  for (int stage = 1; stage <= 3; ++stage) {
    expect_schedule(world, stage, R"(, offload_optimizer: {device: "cpu"})");
  }
  expect_schedule(world, 3,
                  R"(, offload_optimizer: {device: "nvme", nvme_path: ")" + folder.path().string() + "\"}");
}

TEST_F(GpuEngineTest, OverflowsOfOneProcessSkipTheStepOfBoth) {
  run_processes(2, [&](World& world) {
    for (int stage = 0; stage <= 3; ++stage) expect_schedule(world, stage);
  });
}

TEST_F(GpuEngineTest, OverflowsOfOneRankSkipTheStepOfAllOverNcclTwoRanks) {
  run_nccl(2, [&](World& world) {
    for (int stage = 0; stage <= 3; ++stage) expect_schedule(world, stage);
  });
}

// From four ranks to two, to one, and back to four, each at another stage.
TEST_F(GpuEngineTest, CheckpointsMoveBetweenWorldSizesOverNcclFourRanks) {
  run_nccl(4, [&](World& world) {
    const std::filesystem::path folder = shared_folder(world);
    std::vector<at::Tensor> back;
    on_ranks(world, {0, 1, 2, 3}, [&](World& four) { resume(four, 3, "", folder / "four"); });
    on_ranks(world, {0, 1}, [&](World& two) { resume(two, 2, folder / "four", folder / "two"); });
    on_ranks(world, {0}, [&](World& one) { resume(one, 0, folder / "two", folder / "one"); });
    on_ranks(world, {0, 1, 2, 3},
             [&](World& four) { back = resume(four, 1, folder / "one", folder / "back"); });
    std::vector<at::Tensor> expected;
    if (world.rank() == 0) {
      const World one = alone_in_the_world();
      auto engine = initialize(BlockNet(), joined_config(0), one);
      for (int i = 0; i < 4; ++i) train(engine, one.communicator());
      expected = parameters_of(engine);
      ASSERT_EQ(back.size(), expected.size());
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::allclose(back[i], expected[i], 1e-4, 1e-5)) << "parameter " << i;
    }
    world.communicator().barrier();
  });
}

// 16-bit training with float32 masters follows float32 training.
TEST_F(GpuEngineTest, ShortDtypesFollowFloat32) {
  const World world = alone_in_the_world();
  const auto losses = [&](int stage, const std::string& precision, at::ScalarType dtype) {
    BlockNet net;
    auto engine = initialize(net,
                             config(stage, "",
                                    precision +
                                        R"(gradient_clipping: 0.5,
                                    optimizer: {type: "AdamW", params: {lr: 0.02}})"),
                             world);
    std::vector<double> values;
    for (int step = 0; step < 20; ++step) {
      const at::Tensor loss =
          (engine.forward(batch_of(world, step % 4, dtype)).to(at::kFloat) - 0.3).square().mean();
      values.push_back(loss.item<double>());
      engine.backward(loss);
      engine.step();
    }
    EXPECT_EQ(engine.skipped_steps(), 0);
    return values;
  };
  const std::vector<double> expected = losses(0, "", at::kFloat);
  EXPECT_LT(expected.back(), expected.front() / 2);
  for (int stage = 0; stage <= 3; ++stage) {
    const auto near = [&](const std::vector<double>& actual, double tolerance, const char* what) {
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(actual[i], expected[i], tolerance * expected.front())
            << what << " at stage " << stage << ", step " << i;
      }
    };
    near(losses(stage, "", at::kFloat), 1e-4, "fp32");
    near(losses(stage, "bf16: {enabled: true}, ", at::kBFloat16), 0.05, "bf16");
    near(losses(stage, "fp16: {enabled: true, loss_scale: 128}, ", at::kHalf), 0.02, "fp16");
  }
}

TEST_F(GpuEngineTest, SavesAndGoesOnBitForBit) {
  const World world = alone_in_the_world();
  for (int stage = 0; stage <= 3; ++stage) {
    const test::TemporaryFolder folder{"/dev/shm"};
    const auto file = config(stage, "", R"(bf16: {enabled: true}, optimizer: {type: "AdamW"})");
    const auto train = [&](auto& engine, int from, int to) {
      for (int step = from; step < to; ++step) {
        engine.backward(engine.forward(batch_of(world, step, at::kBFloat16)).square().mean());
        engine.step();
      }
    };
    BlockNet straight;
    auto first = initialize(straight, file, world);
    train(first, 0, 4);
    first.save_checkpoint(folder.path());
    train(first, 4, 8);
    BlockNet resumed;
    auto second = initialize(resumed, file, world);
    ASSERT_TRUE(second.load_checkpoint(folder.path()));
    train(second, 4, 8);
    const auto expected = parameters_of(first);
    const auto actual = parameters_of(second);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_bits(actual[i], expected[i])) << "stage " << stage << ", parameter " << i;
    }
  }
}

}  // namespace
}  // namespace lockstep
