#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/deepspeed_config.h>

#include <lockstep/json.h>
#include <fstream>

#include "support/config_error.h"
#include "support/fuzz.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using C = DeepSpeedConfig;
using Type = C::Optimizer::Type;

C text(const std::string& text) { return C::from_text(text, "ds.json"); }

// One of the configuration files of tests/fuzz/deepspeed.
C file(const std::string& name) {
  for (const test::FuzzFile& file : test::fuzz_corpus("deepspeed")) {
    if (file.name == name) return C::from_text(file.bytes, name);
  }
  throw std::runtime_error("no file tests/fuzz/deepspeed/" + name);
}

TEST(DeepSpeedConfigTest, ReadsWhatTheGuideOfLumiPrints) {
  const C config = text(R"({
  "zero_optimization": {
    "stage": 1
  },

  "fp16": {
    "enabled": false,
  }
}
)");
  EXPECT_EQ(config.zero.stage, 1);
  EXPECT_FALSE(config.fp16.enabled);
  EXPECT_EQ(config.dtype(), C::Dtype::kFp32);
  EXPECT_EQ(config.gradient_clipping, 1.0) << "the default since June 2026";
  EXPECT_FALSE(config.zero.overlaps());
  EXPECT_FALSE(config.optimizer.exists());
  EXPECT_EQ(config.places.at("zero_optimization.stage"), "ds.json:3:5");
  EXPECT_EQ(config.places.count("gradient_clipping"), 0u);
  // The file of that page has no batch size: the loader of the recipe sets it.
  EXPECT_EQ(config.resolve_batch(8, 32).train_batch_size, 256);
}

TEST(DeepSpeedConfigTest, ReadsLumisFileOfTheRepository) {
  const C config = file("lumi_repository");
  EXPECT_EQ(config.train_batch_size, 32);
  EXPECT_EQ(config.steps_per_print, 100);
  EXPECT_EQ(config.optimizer.type, Type::kAdam);
  EXPECT_TRUE(config.optimizer.decouples_weight_decay()) << "Adam in the file is AdamW's arithmetic";
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  EXPECT_EQ(config.resolve_batch(8).micro_batch_size, 4);
}

TEST(DeepSpeedConfigTest, ReadsOneKey) {
  const C::BatchTriple batch = file("one_key").resolve_batch(2);
  EXPECT_EQ(batch.train_batch_size, 8);
  EXPECT_EQ(batch.accumulation_steps, 1);
}

TEST(DeepSpeedConfigTest, ReadsStage2WithFp16AndOffload) {
  const C config = file("stage2_fp16_offload");
  EXPECT_EQ(config.dtype(), C::Dtype::kFp16);
  EXPECT_TRUE(config.fp16.has_dynamic_scale());
  EXPECT_EQ(config.fp16.initial_scale_power, 12);
  EXPECT_EQ(config.zero.stage, 2);
  EXPECT_EQ(config.zero.reduce_bucket_size, 200'000'000);
  EXPECT_TRUE(config.zero.overlaps());
  EXPECT_EQ(config.zero.offload_optimizer.device, C::OffloadDevice::kCpu);
  EXPECT_EQ(config.optimizer.type, Type::kAdamW);
  EXPECT_THAT(config.optimizer.betas, testing::ElementsAre(0.8, 0.999));
  EXPECT_EQ(config.scheduler.type, C::Scheduler::Type::kWarmupLr);
  EXPECT_EQ(config.scheduler.warmup_max_lr, 3e-5);
  EXPECT_EQ(config.scheduler.warmup_type, C::Scheduler::Warmup::kLog);
  EXPECT_EQ(config.resolve_batch(8).train_batch_size, 64);
}

TEST(DeepSpeedConfigTest, ResolvesAutoAndSaysSo) {
  const C config = file("stage3_auto");
  std::vector<std::string> resolved;
  for (const C::AutoValue& value : config.auto_values) resolved.push_back(value.key + "=" + value.value);
  EXPECT_THAT(resolved,
              testing::ElementsAre("optimizer.params.lr=0.001", "optimizer.params.betas=[0.9,0.999]",
                                   "optimizer.params.eps=1e-08", "optimizer.params.weight_decay=0.0",
                                   "zero_optimization.reduce_bucket_size=500000000",
                                   "zero_optimization.stage3_prefetch_bucket_size=50000000",
                                   "zero_optimization.stage3_param_persistence_threshold=100000",
                                   "gradient_accumulation_steps=null", "gradient_clipping=1.0",
                                   "train_batch_size=null", "train_micro_batch_size_per_gpu=null"));
  EXPECT_EQ(config.zero.offload_param.device, C::OffloadDevice::kCpu);
  EXPECT_TRUE(config.zero.gather_16bit_weights_on_model_save);
  EXPECT_EQ(config.dtype(), C::Dtype::kBf16);
  EXPECT_EQ(config.resolve_batch(4, 8).train_batch_size, 32);
}

TEST(DeepSpeedConfigTest, ReadsOffloadToNvme) {
  const C config = file("stage3_nvme");
  const C::OffloadOptimizer& offload = config.zero.offload_optimizer;
  EXPECT_EQ(offload.device, C::OffloadDevice::kNvme);
  EXPECT_EQ(offload.nvme_path, "/local_nvme");
  EXPECT_EQ(offload.buffer_count, 5);
  EXPECT_TRUE(offload.pipeline_read && offload.pipeline_write && offload.pin_memory);
  EXPECT_EQ(offload.ratio, 0.5);
  EXPECT_FALSE(config.bf16.check_grad_overflow);
  EXPECT_FALSE(config.optimizer.decouples_weight_decay());
  EXPECT_TRUE(config.zero.overlaps()) << "stage 3 overlaps unless the file says otherwise";
  EXPECT_EQ(config.aio.block_size, 262144);
  EXPECT_EQ(config.aio.intra_op_parallelism, 2);
}

TEST(DeepSpeedConfigTest, ReadsPlainDataParallelism) {
  const C config = file("sgd");
  EXPECT_EQ(config.optimizer.type, Type::kSgd);
  EXPECT_EQ(config.optimizer.momentum, 0.9);
  EXPECT_TRUE(config.optimizer.nesterov);
  EXPECT_EQ(config.gradient_clipping, 0);
  EXPECT_EQ(config.gradient_allreduce_op, C::GradientOp::kSum);
  EXPECT_EQ(config.communication_data_type, C::Dtype::kBf16);
  EXPECT_EQ(config.resolve_batch(2).train_batch_size, 1024);
}

TEST(DeepSpeedConfigTest, ReadsMonitors) {
  const C config = file("adagrad_monitors");
  EXPECT_EQ(config.optimizer.lr, 1e-2) << "Adagrad's own default";
  EXPECT_EQ(config.optimizer.eps, 1e-10);
  EXPECT_FALSE(config.zero.ignore_unused_parameters);
  EXPECT_EQ(config.tensorboard.output_path, "logs/tb");
  EXPECT_TRUE(config.csv_monitor.enabled);
  EXPECT_EQ(config.csv_monitor.job_name, "DeepSpeedJobName");
  EXPECT_TRUE(config.dump_state && config.memory_breakdown && config.dataloader_drop_last);
}

TEST(DeepSpeedConfigTest, ReadsEverySchedule) {
  EXPECT_EQ(file("one_cycle").gradient_predivide_factor, 2);
  EXPECT_TRUE(file("range_test").prescale_gradients);
  const C::Scheduler cycle = file("one_cycle").scheduler;
  EXPECT_EQ(cycle.type, C::Scheduler::Type::kOneCycle);
  EXPECT_EQ(cycle.cycle_second_step_size, std::nullopt);
  EXPECT_EQ(cycle.cycle_second_stair_count, 5);
  EXPECT_EQ(cycle.cycle_max_mom, 0.99);
  const C::Scheduler range = file("range_test").scheduler;
  EXPECT_EQ(range.lr_range_test_step_rate, 5);
  EXPECT_TRUE(range.lr_range_test_staircase);
  const C::Scheduler cosine = file("warmup_cosine").scheduler;
  EXPECT_EQ(cosine.type, C::Scheduler::Type::kWarmupCosineLr);
  EXPECT_EQ(cosine.cos_min_ratio, 0.1);
  EXPECT_EQ(cosine.warmup_type, C::Scheduler::Warmup::kLinear);
  const C::Scheduler decay = file("warmup_decay").scheduler;
  EXPECT_EQ(decay.total_num_steps, 10000);
  EXPECT_EQ(decay.warmup_max_lr, 1e-3) << "unlike WarmupLR, which takes the optimizer's";
}

TEST(DeepSpeedConfigTest, ReadsEveryOptimizer) {
  const C lamb = file("lamb_static_scale");
  EXPECT_EQ(lamb.optimizer.max_coeff, 0.3);
  EXPECT_FALSE(lamb.optimizer.bias_correction);
  EXPECT_FALSE(lamb.fp16.has_dynamic_scale());
  EXPECT_EQ(lamb.fp16.min_loss_scale, 0) << "a static scale does not use it";
  EXPECT_TRUE(lamb.fp16.auto_cast);
  const C lion = file("lion_no_braces");
  EXPECT_THAT(lion.optimizer.betas, testing::ElementsAre(0.95, 0.98));
  EXPECT_EQ(lion.csv_monitor.job_name, "long name");
  const C rmsprop = file("rmsprop");
  EXPECT_EQ(rmsprop.optimizer.lr, 1e-2);
  EXPECT_TRUE(rmsprop.optimizer.centered);
  const C lbfgs = file("lbfgs");
  EXPECT_EQ(lbfgs.optimizer.lr, 1);
  EXPECT_EQ(lbfgs.optimizer.line_search_fn, C::Optimizer::LineSearch::kStrongWolfe);
  const C adam = file("torch_adam");
  EXPECT_TRUE(adam.optimizer.torch_adam && adam.optimizer.amsgrad);
  EXPECT_EQ(adam.optimizer.weight_decay, 0.01) << "torch's AdamW has one by default";
  EXPECT_EQ(adam.torch_autocast.dtype, C::Dtype::kBf16);
  EXPECT_FALSE(adam.managed_gradient_accumulation);
}

TEST(DeepSpeedConfigTest, ReadsOldSpellings) {
  const C bare = file("bare_true");
  EXPECT_EQ(bare.zero.stage, 1);
  EXPECT_EQ(bare.optimizer.type, Type::kAdam);
  const C old = file("old_names");
  EXPECT_TRUE(old.bf16.enabled);
  EXPECT_EQ(old.zero.offload_optimizer.device, C::OffloadDevice::kCpu);
  EXPECT_EQ(old.zero.offload_param.device, C::OffloadDevice::kCpu);
  EXPECT_EQ(old.zero.prefetch_bucket_size, 1000);
  EXPECT_EQ(old.zero.model_persistence_threshold, 40);
  EXPECT_TRUE(old.zero.gather_16bit_weights_on_model_save);
  EXPECT_EQ(old.aio.intra_op_parallelism, 4);
}

TEST(DeepSpeedConfigTest, TakesWhatIsRefusedWhenItIsOff) {
  const C config = file("all_off");
  EXPECT_EQ(config.zero.stage, 0);
  EXPECT_TRUE(config.activation_checkpointing.cpu_checkpointing);
  EXPECT_TRUE(config.auto_values.empty()) << "keep_in_fp32_modules is called auto in DeepSpeed, too";
}

TEST(DeepSpeedConfigTest, ReadsProfilers) {
  const C config = file("profilers");
  EXPECT_TRUE(config.wall_clock_breakdown) << "the profiler turns it on";
  EXPECT_EQ(config.flops_profiler.output_file, "flops.txt");
  EXPECT_THAT(config.comms_logger.prof_ops, testing::ElementsAre("all_reduce", "all_gather"));
  EXPECT_FALSE(config.throughput_timer.synchronized);
  EXPECT_EQ(config.checkpoint.tag_validation, C::Checkpoint::TagValidation::kFail);
  EXPECT_EQ(config.log_level, C::LogLevel::kWarning);
}

TEST(DeepSpeedConfigTest, WhatIsPrintedReadsTheSame) {
  int files = 0;
  for (const test::FuzzFile& file : test::fuzz_corpus("deepspeed")) {
    if (file.is_hostile()) continue;
    const Json printed = C::from_text(file.bytes, file.name).to_json();
    EXPECT_EQ(C::from_text(printed.dump(2), "printed").to_json(), printed) << file.name;
    ++files;
  }
  EXPECT_GE(files, 15);
}

TEST(DeepSpeedConfigTest, PrintsTheKeysOfTheType) {
  const Json json = file("lion_no_braces").to_json();
  EXPECT_EQ(json["optimizer"].dump({.order = Json::Order::kAsAdded}),
            R"({"type":"Lion","params":{"lr":0.0001,"betas":[0.95,0.98],"weight_decay":0.0}})");
  EXPECT_FALSE(json.contains("scheduler"));
  EXPECT_EQ(json["zero_optimization"]["offload_optimizer"]["device"], "none");
}

TEST(DeepSpeedConfigTest, ComesFromAFileOrBase64) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "ds_config.json";
  std::ofstream(path) << "{train_batch_size: 4,}";
  EXPECT_EQ(C::from_file(path).train_batch_size, 4);
  EXPECT_EQ(C::from_argument(path).places.at("train_batch_size"), path + ":1:2");
  EXPECT_EQ(C::from_argument("e3RyYWluX2JhdGNoX3NpemU6IDR9").train_batch_size, 4);
  EXPECT_EQ(C::from_argument("e3RyYWluX2JhdGNoX3NpemU6IDR9").places.at(""), "base64");
}

TEST(DeepSpeedConfigTest, ChecksAStructMadeInCode) {
  C config;
  config.validate();
  config.fp16.enabled = config.bf16.enabled = true;
  EXPECT_EQ(test::error_of([&] { config.validate(); }),
            "[deepspeed] fp16 and bf16 are both enabled: a model has one dtype, disable one of the two");
}

}  // namespace
}  // namespace lockstep
