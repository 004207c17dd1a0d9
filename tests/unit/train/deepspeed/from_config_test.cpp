// What a configuration becomes: an optimizer, a schedule, options; and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <set>

#include "support/config_error.h"
#include "train/deepspeed/make_optimizer.h"
#include "train/deepspeed/make_schedule.h"
#include "train/deepspeed/sharded_options.h"
#include "train/deepspeed/supported.h"

namespace lockstep::deepspeed {
namespace {

using C = DeepSpeedConfig;
using test::error_of;
using testing::HasSubstr;
using testing::StartsWith;

C text(const std::string& text) { return C::from_text(text, "ds.json"); }

// An optimizer's values, as a checkpoint has them, of a file with this in "optimizer".
nlohmann::json options_of(const std::string& optimizer, at::ScalarType dtype = at::kFloat) {
  const C config = text("{optimizer: " + optimizer + "}");
  const at::Tensor parameter = torch::zeros({3}, dtype).requires_grad_();
  const auto made = make_optimizer(config.optimizer, {parameter});
  const nlohmann::json values = nlohmann::json::parse(optimizer_state(*made, {{"p", parameter}}).values);
  nlohmann::json result = values.at("groups").at(0).at("options");
  result["class"] = values.at("class");
  return result;
}

TEST(MakeOptimizerTest, AdamDecaysAsAdamWUnlessTheFileSaysOtherwise) {
  EXPECT_EQ(options_of(R"({"type": "Adam"})").at("class"), "AdamW");
  EXPECT_EQ(options_of(R"({"type": "AdamW"})").at("class"), "AdamW");
  EXPECT_EQ(options_of(R"({"type": "Adam", "params": {"adam_w_mode": false}})").at("class"), "Adam");
}

TEST(MakeOptimizerTest, TorchsAdamHasItsOwnDefaults) {
  const auto options = options_of(R"({"type": "AdamW", "params": {"torch_adam": true, "amsgrad": true}})");
  EXPECT_EQ(options.at("class"), "AdamW");
  EXPECT_EQ(options.at("weight_decay"), 0.01);
  EXPECT_EQ(options.at("amsgrad"), true);
  const auto plain = options_of(R"({"type": "AdamW", "params": {"torch_adam": true}})");
  EXPECT_EQ(plain.at("class"), "AdamW");
  EXPECT_EQ(plain.at("weight_decay"), 0.01);
}

TEST(MakeOptimizerTest, TorchsAdamHasTheBitsOfItsFusedKernel) {
  const auto config = DeepSpeedConfig::from_text(
      R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.125, "torch_adam": true}}})", "test");
  torch::manual_seed(1);
  const at::Tensor parameter = torch::randn({1000}).requires_grad_();
  at::Tensor expected = parameter.detach().clone();
  const auto made = make_optimizer(config.optimizer, {parameter});
  at::Tensor first = at::zeros_like(expected);
  at::Tensor second = at::zeros_like(expected);
  for (int step = 1; step <= 3; ++step) {
    parameter.mutable_grad() = torch::randn({1000});
    at::_fused_adamw_({expected}, {parameter.grad()}, {first}, {second}, {}, {at::full({}, step, at::kFloat)},
                      0.125, 0.9, 0.999, 0.01, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
    made->step();
  }
  EXPECT_TRUE(at::equal(parameter.detach(), expected));
}

TEST(MakeOptimizerTest, OptionsAreTheFiles) {
  const auto adam = options_of(
      R"({"type": "adam", "params": {"lr": 0.5, "betas": [0.1, 0.2], "eps": 1e-3, "weight_decay": 0.25}})");
  EXPECT_EQ(adam.at("lr"), 0.5);
  EXPECT_EQ(adam.at("betas"), nlohmann::json({0.1, 0.2}));
  EXPECT_EQ(adam.at("eps"), 1e-3);
  EXPECT_EQ(adam.at("weight_decay"), 0.25);

  const auto adagrad =
      options_of(R"({"type": "Adagrad", "params": {"lr_decay": 0.5, "initial_accumulator_value": 0.25}})");
  EXPECT_EQ(adagrad.at("class"), "Adagrad");
  EXPECT_EQ(adagrad.at("lr"), 0.01);
  EXPECT_EQ(adagrad.at("lr_decay"), 0.5);
  EXPECT_EQ(adagrad.at("initial_accumulator_value"), 0.25);

  const auto lamb = options_of(R"({"type": "Lamb", "params": {"max_coeff": 5, "bias_correction": false}})");
  EXPECT_EQ(lamb.at("class"), "Lamb");
  EXPECT_EQ(lamb.at("max_coeff"), 5);
  EXPECT_EQ(lamb.at("bias_correction"), false);

  const auto lion = options_of(R"({"type": "Lion", "params": {"lr": 0.125}})");
  EXPECT_EQ(lion.at("class"), "Lion");
  EXPECT_EQ(lion.at("lr"), 0.125);

  const auto sgd =
      options_of(R"({"type": "SGD", "params": {"momentum": 0.5, "nesterov": true, "weight_decay": 0.125}})");
  EXPECT_EQ(sgd.at("class"), "SGD");
  EXPECT_EQ(sgd.at("momentum"), 0.5);
  EXPECT_EQ(sgd.at("nesterov"), true);
  EXPECT_EQ(sgd.at("weight_decay"), 0.125);

  const auto rmsprop = options_of(R"({"type": "RMSprop", "params": {"alpha": 0.5, "centered": true}})");
  EXPECT_EQ(rmsprop.at("class"), "RMSprop");
  EXPECT_EQ(rmsprop.at("alpha"), 0.5);
  EXPECT_EQ(rmsprop.at("centered"), true);

  const auto lbfgs = options_of(R"({"type": "LBFGS", "params": {"history_size": 7}})");
  EXPECT_EQ(lbfgs.at("class"), "LBFGS");
  EXPECT_EQ(lbfgs.at("history_size"), 7);
}

// The kernels for the CPU take float32 alone.
TEST(MakeOptimizerTest, OtherDtypesHaveOptimizersOfTheSameName) {
  for (const char* type : {"AdamW", "Adagrad", "Lion"}) {
    EXPECT_EQ(options_of(std::string(R"({"type": ")") + type + R"("})", at::kDouble).at("class"), type);
  }
}

// DeepSpeed's iteration 0 is the one after its first step().
TEST(MakeScheduleTest, EveryTypeHasDeepSpeedsRates) {
  const auto rate = [](const std::string& scheduler, int64_t step) {
    const auto schedule = make_schedule(text("{scheduler: " + scheduler + "}").scheduler);
    return schedule.value().at(step, 0.5);
  };
  const std::string warmup =
      R"({"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_type": "linear"}})";
  EXPECT_DOUBLE_EQ(rate(warmup, 6), 0.25);
  EXPECT_DOUBLE_EQ(rate(warmup, 50), 0.5);
  const std::string decay = R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 20,
      "warmup_max_lr": 1, "warmup_num_steps": 10, "warmup_type": "linear"}})";
  EXPECT_DOUBLE_EQ(rate(decay, 16), 0.5);
  const std::string cosine = R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 20,
      "warmup_num_steps": 10, "warmup_type": "linear", "cos_min_ratio": 0}})";
  EXPECT_NEAR(rate(cosine, 10), 0.45, 1e-9);
  EXPECT_LT(rate(cosine, 19), 0.1);
  const std::string range =
      R"({"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.5, "lr_range_test_step_size": 1}})";
  EXPECT_GT(rate(range, 3), rate(range, 2));
  const std::string cycle = R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.25, "cycle_max_lr": 0.75,
      "cycle_first_step_size": 4}})";
  EXPECT_GT(rate(cycle, 3), rate(cycle, 1));
  EXPECT_FALSE(make_schedule(text("{}").scheduler).has_value());
}

TEST(MakeScheduleTest, GoesOnWhereTheFileSaysItStopped) {
  EXPECT_EQ(first_step(text("{}").scheduler), 0);
  EXPECT_EQ(
      first_step(
          text(R"({"scheduler": {"type": "WarmupLR", "params": {"last_batch_iteration": 4}}})").scheduler),
      5);
}

TEST(ShardedOptionsTest, BucketsAreInElementsOfTheModel) {
  EXPECT_EQ(sharded_options(text("{}")).zero.bucket_cap_bytes, ShardedOptions{}.zero.bucket_cap_bytes);
  const std::string zero = R"("zero_optimization": {"stage": 2, "reduce_bucket_size": 1000})";
  EXPECT_EQ(sharded_options(text("{" + zero + "}")).zero.bucket_cap_bytes, 4000);
  EXPECT_EQ(sharded_options(text("{bf16: {enabled: true}, " + zero + "}")).zero.bucket_cap_bytes, 2000);
  EXPECT_EQ(sharded_options(text(R"({zero_optimization: {stage: 1, "allgather_bucket_size": 500}})"))
                .zero.bucket_cap_bytes,
            2000);
}

TEST(ShardedOptionsTest, Stage3) {
  const auto options = sharded_options(text(R"({"zero_optimization": {"stage": 3,
      "stage3_param_persistence_threshold": 7, "stage3_model_persistence_threshold": 70,
      "stage3_prefetch_bucket_size": 11, "overlap_comm": false}})"));
  EXPECT_EQ(options.zero.stage, 3);
  EXPECT_EQ(options.zero.persistence_threshold, 7);
  EXPECT_EQ(options.zero.persistence_limit, 70);
  EXPECT_EQ(options.zero.prefetch_limit, 11);
  EXPECT_FALSE(options.zero.overlap);
  EXPECT_FALSE(options.zero.overlap_gather);
  EXPECT_FALSE(options.find_unused_parameters) << "it keeps all gradients: only where the file says so";
  EXPECT_FALSE(sharded_options(text(R"({"zero_optimization": {"stage": 3, "prefetch_bucket_size": 0}})"))
                   .zero.prefetch);
  EXPECT_TRUE(
      sharded_options(text(R"({"zero_optimization": {"stage": 3, "ignore_unused_parameters": true}})"))
          .find_unused_parameters);
}

TEST(ShardedOptionsTest, Gradients) {
  const auto plain = sharded_options(text("{}"));
  EXPECT_TRUE(plain.find_unused_parameters);
  EXPECT_TRUE(plain.divide_after_sum);
  EXPECT_TRUE(plain.zero.overlap);
  EXPECT_FALSE(plain.zero.overlap_gather);
  EXPECT_TRUE(
      sharded_options(text(R"({zero_optimization: {stage: 2, overlap_comm: true}})")).zero.overlap_gather);
  EXPECT_FALSE(sharded_options(text("{prescale_gradients: true}")).divide_after_sum);
  EXPECT_FALSE(sharded_options(text("{zero_optimization: {stage: 1}}")).divide_after_sum);
  EXPECT_EQ(sharded_options(text("{gradient_predivide_factor: 4}")).gradient_predivide_factor, 4);
  const auto sum = sharded_options(text(R"({"gradient_allreduce_op": "sum"})"));
  EXPECT_TRUE(sum.sum_gradients);
  EXPECT_FALSE(sum.divide_after_sum);
  EXPECT_EQ(sharded_options(text(R"({"communication_data_type": "bf16"})")).communication_dtype,
            at::kBFloat16);
}

TEST(LossScaleTest, ByPrecision) {
  const auto scale = [](const std::string& file, at::DeviceType device = at::kCPU) {
    return loss_scale_options(text(file), device);
  };
  EXPECT_FALSE(scale("{}"));
  const auto bf16 = scale("{bf16: {enabled: true}}").value();
  EXPECT_EQ(bf16.init_scale, 1);
  EXPECT_FALSE(bf16.dynamic);
  EXPECT_FALSE(scale("{bf16: {enabled: true, check_grad_overflow: false}}"));
  const auto fixed = scale("{fp16: {enabled: true, loss_scale: 128}}").value();
  EXPECT_EQ(fixed.init_scale, 128);
  EXPECT_FALSE(fixed.dynamic);
  const auto dynamic = scale(R"({fp16: {enabled: true, initial_scale_power: 8, loss_scale_window: 5,
      hysteresis: 3, consecutive_hysteresis: true, min_loss_scale: 2}})")
                           .value()
                           .deepspeed.value();
  EXPECT_EQ(dynamic.initial_scale_power, 8);
  EXPECT_EQ(dynamic.loss_scale_window, 5);
  EXPECT_EQ(dynamic.hysteresis, 3);
  EXPECT_TRUE(dynamic.consecutive_hysteresis);
  EXPECT_EQ(dynamic.min_loss_scale, 2);
  const std::string autocast = "{torch_autocast: {enabled: true}}";
  EXPECT_FALSE(scale(autocast)) << "bf16 on a CPU";
  EXPECT_TRUE(scale(autocast, at::kCUDA));
  EXPECT_EQ(autocast_dtype(text(autocast), at::kCUDA), at::kHalf);
  EXPECT_EQ(autocast_dtype(text(autocast), at::kCPU), at::kBFloat16);
}

TEST(ShardedOptionsTest, Offload) {
  const auto options = sharded_options(text(R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 3,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/somewhere", "pin_memory": false, "buffer_count": 3,
        "pipeline_read": true}, "offload_param": {"device": "cpu"}},
      "aio": {"block_size": 8192, "queue_depth": 2}})"));
  EXPECT_EQ(options.zero.offload_optimizer.device, OffloadDevice::kNvme);
  EXPECT_EQ(options.zero.offload_optimizer.nvme_path, "/somewhere");
  EXPECT_FALSE(options.zero.offload_optimizer.pin_memory);
  EXPECT_EQ(options.zero.offload_optimizer.buffer_count, 3);
  EXPECT_TRUE(options.zero.offload_optimizer.pipeline_read);
  EXPECT_FALSE(options.zero.offload_optimizer.pipeline_write);
  EXPECT_EQ(options.zero.offload_param.device, OffloadDevice::kCpu);
  EXPECT_TRUE(options.zero.offload_param.pin_memory);
  EXPECT_EQ(options.zero.aio.block_size, 8192);
  EXPECT_EQ(options.zero.aio.queue_depth, 2);
}

struct Refused {
  const char* file;
  const char* key;
};

constexpr Refused kRefused[] = {
    {R"({zero_optimization: {stage: 3, offload_optimizer: {device: "cpu", ratio: 0.5}}})",
     "zero_optimization.offload_optimizer.ratio"},
    {R"({zero_optimization: {stage: 3, offload_optimizer: {device: "nvme", nvme_path: "/tmp"}},
        aio: {thread_count: 4}})",
     "aio.intra_op_parallelism"},
    {"{zero_optimization: {stage: 3, stage3_max_live_parameters: 1000}}",
     "zero_optimization.stage3_max_live_parameters"},
    {"{zero_optimization: {stage: 3, stage3_max_reuse_distance: 1000}}",
     "zero_optimization.stage3_max_reuse_distance"},
    {"{activation_checkpointing: {cpu_checkpointing: true}}", "activation_checkpointing.cpu_checkpointing"},
    {R"({bf16: {enabled: true}, data_types: {grad_accum_dtype: "fp32"}})", "data_types.grad_accum_dtype"},
    {R"({optimizer: {type: "Adam", params: {bias_correction: false}}})", "optimizer.params.bias_correction"},
};

TEST(SupportedTest, RefusesWhatNothingActsOnByNameAndPlace) {
  std::set<std::string> covered;
  for (const Refused& refused : kRefused) {
    const C config = text(refused.file);
    const std::string error = error_of([&] { require_supported(config); });
    EXPECT_THAT(error, StartsWith("[deepspeed] ds.json:"));
    EXPECT_THAT(error, HasSubstr(std::string(refused.key) + ": "));
    covered.insert(refused.key);
  }
  for (const Unsupported& key : unsupported_keys()) EXPECT_TRUE(covered.count(key.key)) << key.key;
}

TEST(SupportedTest, TakesFilesThatAskForNothingMissing) {
  require_supported(text("{}"));
  require_supported(text(R"({"zero_optimization": {"stage": 3, "stage3_max_live_parameters": 1e9,
      "stage3_max_reuse_distance": 1e9, "offload_param": {"device": "none"}}})"));
  require_supported(text(R"({"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"}})"));
}

}  // namespace
}  // namespace lockstep::deepspeed
