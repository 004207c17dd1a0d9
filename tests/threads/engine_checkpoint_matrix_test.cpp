// Checkpoints in folders, from every stage on 1 to 4 ranks to every stage on 1 to 4 ranks.

#include <gtest/gtest.h>
#include <lockstep/deepspeed.h>
#include <torch/torch.h>

#include "support/block_net.h"
#include "support/group_case.h"
#include "support/overflow_schedule.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using test::BlockNet;
using test::formula;
using test::run_group;
using test::same_bits;

constexpr int kBefore = 5;  // steps before the save
constexpr int kAfter = 10;
constexpr int64_t kGroupBatch = 12;  // of all ranks

// With this eps rounding stays rounding: Adam's own makes steps of it where gradients vanish.
DeepSpeedConfig matrix_config(int stage) {
  return DeepSpeedConfig::from_text(R"({train_batch_size: 12, gradient_clipping: 0.5,
      optimizer: {type: "AdamW", params: {lr: 0.01, eps: 1e-4, weight_decay: 0.01}},
      scheduler: {type: "WarmupLR", params: {warmup_num_steps: 12}},
      zero_optimization: {stage: )" + std::to_string(stage) +
                                        ", reduce_bucket_size: 75, stage3_param_persistence_threshold: 9}}",
                                    "ds.json");
}

struct StageOnRanks {
  int stage = 0;
  int ranks = 1;
};

struct MatrixOutcome {
  at::Tensor losses;  // of the last kAfter steps, over all ranks
  std::vector<at::Tensor> weights;
};

using TestEngine = Engine<test::BlockNetImpl>;

// The twelve samples of a step, divided by the ranks.
at::Tensor train_step(TestEngine& engine, const Communicator& group) {
  const int64_t count = kGroupBatch / group.size();
  const at::Tensor x =
      formula({kGroupBatch, 3}, 50 + engine.global_steps()).narrow(0, count * group.rank(), count);
  const at::Tensor loss = engine.forward(x).square().mean();
  engine.backward(loss);
  engine.step();
  return loss.detach();
}

MatrixOutcome finish(TestEngine& engine, const Communicator& group) {
  std::vector<at::Tensor> losses;
  for (int i = 0; i < kAfter; ++i) losses.push_back(train_step(engine, group));
  EXPECT_EQ(engine.global_steps(), kBefore + kAfter);
  EXPECT_EQ(engine.global_samples(), kGroupBatch * (kBefore + kAfter));
  const at::Tensor own = torch::stack(losses).reshape({1, kAfter});
  at::Tensor all = torch::empty({group.size(), kAfter});
  group.all_gather(all, own).wait();
  return {all.mean(0), test::parameters_of(engine)};
}

// Runs `body` with an engine on every rank; what rank 0's gives.
MatrixOutcome on_ranks(const StageOnRanks& layout,
                       const std::function<MatrixOutcome(TestEngine&, Communicator&)>& body) {
  MatrixOutcome outcome;
  run_group({"shm", std::vector<int>(static_cast<size_t>(layout.ranks), 0)}, [&](Communicator& group) {
    auto engine = initialize(BlockNet(), matrix_config(layout.stage), group);
    MatrixOutcome own = body(engine, group);
    if (group.rank() == 0) outcome = std::move(own);
  });
  return outcome;
}

MatrixOutcome straight(const StageOnRanks& layout) {
  return on_ranks(layout, [](TestEngine& engine, Communicator& group) {
    for (int i = 0; i < kBefore; ++i) train_step(engine, group);
    return finish(engine, group);
  });
}

void save(const StageOnRanks& layout, const std::filesystem::path& folder) {
  on_ranks(layout, [&](TestEngine& engine, Communicator& group) {
    for (int i = 0; i < kBefore; ++i) train_step(engine, group);
    engine.save_checkpoint(folder);
    return MatrixOutcome();
  });
}

MatrixOutcome go_on(const StageOnRanks& layout, const std::filesystem::path& folder,
                    const LoadCheckpointOptions& options = {}) {
  return on_ranks(layout, [&](TestEngine& engine, Communicator& group) {
    EXPECT_TRUE(engine.load_checkpoint(folder, options));
    return finish(engine, group);
  });
}

bool is_close(const MatrixOutcome& actual, const MatrixOutcome& expected) {
  bool close = torch::allclose(actual.losses, expected.losses, 1e-4, 1e-6);
  for (size_t i = 0; i < expected.weights.size(); ++i) {
    close &= torch::allclose(actual.weights.at(i), expected.weights[i], 1e-4, 1e-5);
  }
  return close;
}

class EngineCheckpointMatrixTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  StageOnRanks layout() const { return {std::get<0>(GetParam()), std::get<1>(GetParam())}; }
  test::TemporaryFolder folder_{"/dev/shm"};
};

// From this stage and world size to all others.
TEST_P(EngineCheckpointMatrixTest, TenStepsAfterALoadAreThoseWithoutAStop) {
  const MatrixOutcome expected = straight({});
  save(layout(), folder_.path());
  for (const int stage : {0, 1, 2, 3}) {
    for (const int ranks : {1, 2, 3, 4}) {
      const MatrixOutcome actual = go_on({stage, ranks}, folder_.path());
      EXPECT_TRUE(is_close(actual, expected)) << "loaded at stage " << stage << " on " << ranks << " ranks\n"
                                              << actual.losses << expected.losses;
    }
  }
}

TEST_P(EngineCheckpointMatrixTest, OnAsManyRanksTheyAreTheSameBits) {
  const MatrixOutcome expected = straight(layout());
  save(layout(), folder_.path());
  const MatrixOutcome actual = go_on(layout(), folder_.path());
  EXPECT_TRUE(same_bits(actual.losses, expected.losses));
  for (size_t i = 0; i < expected.weights.size(); ++i) {
    EXPECT_TRUE(same_bits(actual.weights.at(i), expected.weights[i])) << "parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(From, EngineCheckpointMatrixTest,
                         testing::Combine(testing::Values(0, 1, 2, 3), testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return "stage" + std::to_string(std::get<0>(info.param)) + "_ranks" +
                                  std::to_string(std::get<1>(info.param));
                         });

// What the comparison above would not miss.
TEST(EngineCheckpointMatrix, WithoutTheOptimizersStateTheStepsAreOthers) {
  const test::TemporaryFolder folder("/dev/shm");
  save({2, 2}, folder.path());
  EXPECT_FALSE(is_close(go_on({2, 2}, folder.path(), {.load_optimizer_states = false}), straight({})));
}

}  // namespace
}  // namespace lockstep
