// Whole weights of a divided 16-bit training: as they train, and as the masters behind them.

#include <gtest/gtest.h>
#include <lockstep/deepspeed.h>
#include <torch/torch.h>

#include "checkpoint/weights.h"
#include "support/block_net.h"
#include "support/group_case.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using test::BlockNet;
using test::formula;

struct UsedTwiceImpl : torch::nn::Module {
  UsedTwiceImpl()
      : weight(register_parameter("weight", formula({3, 3}, 7))),
        out(register_module("out", torch::nn::Linear(3, 2))) {
    register_parameter("again", weight);
    test::set_parameters(*this);
  }
  torch::Tensor forward(torch::Tensor x) {
    return out(torch::matmul(torch::tanh(torch::matmul(x, weight)), weight));
  }
  torch::Tensor weight;
  torch::nn::Linear out;
};
TORCH_MODULE(UsedTwice);

class EngineExportTest : public testing::TestWithParam<int> {
 protected:
  // Three steps in bf16 on two ranks, and a checkpoint.
  template <typename Net>
  void train() {
    test::run_group({"shm", {0, 0}}, [&](Communicator& group) {
      Net net;
      auto engine = initialize(
          net,
          DeepSpeedConfig::from_text(
              "{train_micro_batch_size_per_gpu: 4, bf16: {enabled: true}, optimizer: {type: \"AdamW\", "
              "params: {lr: 0.01}}, zero_optimization: {stage: " +
                  std::to_string(GetParam()) + ", stage3_param_persistence_threshold: 9}}",
              "ds.json"),
          group);
      for (int step = 0; step < 3; ++step) {
        engine.backward(engine.forward(formula({4, 3}, step).to(torch::kBFloat16)).square().mean());
        engine.step();
      }
      engine.save_checkpoint(folder_.path());
    });
  }

  const test::TemporaryFolder folder_;
};

TEST_P(EngineExportTest, Float32IsTheMasterBehindTheWeight) {
  train<BlockNet>();
  const checkpoint::WeightsSource source = checkpoint::find_weights(folder_.path());
  const NamedTensors saved = checkpoint::read_tensors(source, checkpoint::WhichTensors::kModel);
  const NamedTensors whole = checkpoint::read_weights_as(source, torch::kFloat32);
  const NamedTensors half = checkpoint::read_weights_as(source, torch::kFloat16);
  ASSERT_EQ(whole.size(), saved.size());
  ASSERT_EQ(saved.size(), BlockNet()->parameters().size());
  bool is_finer = false;
  for (size_t i = 0; i < saved.size(); ++i) {
    EXPECT_EQ(whole[i].first, saved[i].first);
    EXPECT_EQ(saved[i].second.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(whole[i].second.scalar_type(), torch::kFloat32);
    EXPECT_TRUE(torch::equal(whole[i].second.to(torch::kBFloat16), saved[i].second)) << saved[i].first;
    EXPECT_TRUE(torch::equal(half[i].second, saved[i].second.to(torch::kFloat16)));
    is_finer = is_finer || !torch::equal(whole[i].second, saved[i].second.to(torch::kFloat32));
  }
  EXPECT_TRUE(is_finer) << "these are the bfloat16 weights, not what is behind them";
}

// Read by name, the last of which counts: all of them must be the master.
TEST_P(EngineExportTest, ATiedWeightIsTheSameUnderEachName) {
  train<UsedTwice>();
  NamedTensors whole = checkpoint::read_weights_as(checkpoint::find_weights(folder_.path()), torch::kFloat32);
  const auto find = [&](const std::string& name) {
    for (const auto& [own, tensor] : whole) {
      if (own == name) return tensor;
    }
    throw std::out_of_range(name);
  };
  EXPECT_TRUE(torch::equal(find("weight"), find("again")));
  EXPECT_FALSE(torch::equal(find("again"), find("again").to(torch::kBFloat16).to(torch::kFloat32)));
}

INSTANTIATE_TEST_SUITE_P(Stages, EngineExportTest, testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace lockstep
