// The stages against each other over a longer training: the same losses and weights.

#include <gtest/gtest.h>
#include <lockstep/deepspeed.h>
#include <torch/torch.h>

#include "recipes/vision_transformer.h"
#include "support/block_net.h"
#include "support/group_case.h"

namespace lockstep {
namespace {

using test::formula;
using test::run_group;
using test::same_bits;

constexpr int kSteps = 30;

constexpr const char* kOptimizers[] = {
    R"({type: "SGD", params: {lr: 0.05, momentum: 0.9, weight_decay: 0.01}})",
    R"({type: "Adam", params: {lr: 0.005, weight_decay: 0.01}})"};

// Several buckets, and at stage 3 both kinds of parameters: kept whole and divided.
DeepSpeedConfig stage_config(int stage, const std::string& optimizer) {
  return DeepSpeedConfig::from_text("{train_micro_batch_size_per_gpu: 4, gradient_clipping: 0, optimizer: " +
                                        optimizer + ", zero_optimization: {stage: " + std::to_string(stage) +
                                        ", reduce_bucket_size: 300, stage3_param_persistence_threshold: 20}}",
                                    "ds.json");
}

struct Outcome {
  std::vector<at::Tensor> losses;  // of rank 0, step by step
  std::vector<at::Tensor> weights;
};

// Two ranks: a sum of two has one order.
template <typename Make>
Outcome train(int stage, const char* optimizer, const Make& make, const std::vector<int64_t>& batch) {
  Outcome outcome;
  run_group({"shm", {0, 0}}, [&](Communicator& group) {
    const auto module = make();
    test::set_parameters(*module);
    auto engine = initialize(module, stage_config(stage, optimizer), group);
    std::vector<at::Tensor> losses;
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor loss = engine.forward(formula(batch, 2 * step + group.rank())).square().mean();
      losses.push_back(loss.detach().clone());
      engine.backward(loss);
      engine.step();
    }
    EXPECT_EQ(engine.global_steps(), kSteps);
    const auto scope = engine.gather_parameters();
    if (group.rank() > 0) return;
    outcome.losses = losses;
    for (const at::Tensor& parameter : module->parameters()) {
      outcome.weights.push_back(parameter.detach().clone());
    }
  });
  return outcome;
}

template <typename Make>
void expect_the_same_at_every_stage(const Make& make, const std::vector<int64_t>& batch) {
  for (const char* optimizer : kOptimizers) {
    const Outcome whole = train(0, optimizer, make, batch);
    ASSERT_EQ(whole.losses.size(), static_cast<size_t>(kSteps));
    EXPECT_LT(whole.losses.back().item<double>(), whole.losses.front().item<double>()) << "it does train";
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + ", " + optimizer);
      const Outcome divided = train(stage, optimizer, make, batch);
      for (size_t i = 0; i < whole.losses.size(); ++i) {
        EXPECT_TRUE(same_bits(divided.losses[i], whole.losses[i])) << "loss of step " << i;
      }
      ASSERT_EQ(divided.weights.size(), whole.weights.size());
      for (size_t i = 0; i < whole.weights.size(); ++i) {
        EXPECT_EQ(divided.weights[i].scalar_type(), at::kFloat);
        EXPECT_TRUE(same_bits(divided.weights[i], whole.weights[i])) << "parameter " << i;
      }
    }
  }
}

TEST(ZeroBits, OfAPerceptron) {
  expect_the_same_at_every_stage(
      [] {
        return torch::nn::Sequential(torch::nn::Linear(5, 24), torch::nn::Tanh(), torch::nn::Linear(24, 24),
                                     torch::nn::Tanh(), torch::nn::Linear(24, 3))
            .ptr();
      },
      {4, 5});
}

TEST(ZeroBits, OfAModelOfUnits) {
  expect_the_same_at_every_stage([] { return test::BlockNet().ptr(); }, {4, 3});
}

TEST(ZeroBits, OfAVisionTransformer) {
  expect_the_same_at_every_stage(
      [] {
        return std::make_shared<models::VisionTransformer>(models::VisionTransformerOptions{.image_size = 16,
                                                                                            .patch_size = 8,
                                                                                            .layers = 2,
                                                                                            .heads = 2,
                                                                                            .hidden_size = 16,
                                                                                            .mlp_size = 32,
                                                                                            .classes = 5});
      },
      {4, 3, 16, 16});
}

}  // namespace
}  // namespace lockstep
