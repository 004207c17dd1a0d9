// Configuration files of many shapes, each of which trains.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/engine.h>
#include <torch/torch.h>

#include <fstream>
#include <sstream>

#include "support/block_net.h"
#include "support/fuzz.h"
#include "support/group_case.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using test::BlockNet;
using test::formula;
using test::run_group;
using test::same_bits;
using testing::HasSubstr;

struct File {
  const char* name;
  const char* text;
};

constexpr File kFiles[] = {
    {"stage0_plain", R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.01}}})"},
    {"stage1_comments", R"({
       // C++ speaks
       # so does Python
       /* and C */
       train_micro_batch_size_per_gpu: 4
       zero_optimization: {stage: 1}
       optimizer: {type: "AdamW", params: {lr: 1e-2, weight_decay: 0.1}},
     })"},
    {"no_braces", R"(train_batch_size: 8
       zero_optimization: {stage: 2}
       optimizer: {
         type: Lion
         params: {lr: 1e-3}
       })"},
    {"bare_true", R"({"train_batch_size": 8, "zero_optimization": true,
       "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": true}}})"},
    {"auto_values", R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
       "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
       "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
       "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
         "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
         "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true,
         "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9}})"},
    {"bf16_stage3", R"({"train_batch_size": 8, "bf16": {"enabled": true},
       "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "overlap_comm": false},
       "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})"},
    {"fp16_dynamic", R"({"train_batch_size": 8, "fp16": {"enabled": true, "auto_cast": true, "loss_scale": 0,
       "initial_scale_power": 10, "loss_scale_window": 2, "hysteresis": 2, "min_loss_scale": 1},
       "zero_optimization": {"stage": 2}, "optimizer": {"type": "Adam", "params": {"lr": 0.01}}})"},
    {"fp16_static_stage0",
     R"({"train_batch_size": 8, "fp16": {"enabled": true, "auto_cast": true, "loss_scale": 64},
       "optimizer": {"type": "Adagrad", "params": {"lr": 0.05}}})"},
    {"accumulation", R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4,
       "zero_optimization": {"stage": 2, "reduce_bucket_size": 100, "allgather_bucket_size": 80},
       "optimizer": {"type": "RMSprop", "params": {"lr": 0.005, "centered": true, "momentum": 0.5}}})"},
    {"warmup_decay", R"({"train_batch_size": 8, "zero_optimization": {"stage": 1},
       "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
       "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 20, "warmup_num_steps": 2,
         "warmup_max_lr": 0.01, "warmup_type": "linear"}}})"},
    {"warmup_cosine", R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
       "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 20, "warmup_num_steps": 2}}})"},
    {"one_cycle", R"({"train_batch_size": 8, "zero_optimization": {"stage": 3},
       "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
       "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.005, "cycle_max_lr": 0.01,
         "cycle_first_step_size": 5}}})"},
    {"range_test", R"({"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
       "scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.05,
         "lr_range_test_step_size": 5, "lr_range_test_step_rate": 0.1}}})"},
    {"predivided_bf16_sums", R"({"train_batch_size": 8, "gradient_predivide_factor": 2.0,
       "communication_data_type": "bf16", "zero_optimization": {"stage": 2},
       "optimizer": {"type": "Adam", "params": {"lr": 0.01}}})"},
    {"sum_of_gradients", R"({"train_batch_size": 8, "gradient_allreduce_op": "sum", "gradient_clipping": 0.5,
       "zero_optimization": {"stage": 1}, "optimizer": {"type": "SGD", "params": {"lr": 0.05}}})"},
    {"prescaled", R"({"train_batch_size": 8, "prescale_gradients": true, "gradient_clipping": 0,
       "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})"},
    {"torch_adam", R"({"train_batch_size": 8, "zero_optimization": {"stage": 2},
       "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": true, "amsgrad": true}}})"},
    {"coupled_decay", R"({"train_batch_size": 8, "zero_optimization": {"stage": 1},
       "optimizer": {"type": "Adam", "params": {"lr": 0.01, "adam_w_mode": false, "weight_decay": 0.01}}})"},
    {"lamb",
     R"({"train_batch_size": 8, "optimizer": {"type": "Lamb", "params": {"lr": 0.02, "max_coeff": 5}}})"},
    {"autocast", R"({"train_batch_size": 8, "torch_autocast": {"enabled": true, "dtype": "bfloat16"},
       "zero_optimization": {"stage": 3}, "optimizer": {"type": "Adam", "params": {"lr": 0.01}}})"},
    {"lines", R"({"train_batch_size": 8, "steps_per_print": 2, "wall_clock_breakdown": true,
       "memory_breakdown": true, "dump_state": true, "zero_optimization": {"stage": 2},
       "optimizer": {"type": "Adam", "params": {"lr": 0.01}}})"},
    {"offload_cpu", R"({"train_batch_size": 8, "zero_optimization": {"stage": 2,
       "offload_optimizer": {"device": "cpu", "pin_memory": true}},
       "optimizer": {"type": "Adam", "params": {"lr": 0.01}}})"},
    {"offload_both",
     R"({"train_batch_size": 8, "fp16": {"enabled": true, "auto_cast": true, "initial_scale_power": 8},
       "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 10,
       "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
       "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})"},
    {"old_names_of_offload", R"({"train_batch_size": 8, "bf16": {"enabled": true},
       "zero_optimization": {"stage": 1, "cpu_offload": true},
       "optimizer": {"type": "Lion", "params": {"lr": 0.001}}})"},
    {"persistence", R"({"train_batch_size": 8, "zero_optimization": {"stage": 3,
       "stage3_param_persistence_threshold": 100, "stage3_model_persistence_threshold": 30,
       "stage3_prefetch_bucket_size": 0, "ignore_unused_parameters": true},
       "optimizer": {"type": "Adam", "params": {"lr": 0.01}}})"},
};

// The loss of one fixed batch, before and after some steps on it.
struct Training {
  double first = 0;
  double last = 0;
};

Training train(const DeepSpeedConfig& file, Communicator& group, int64_t batch, int micro_batches) {
  BlockNet net;
  auto engine = initialize(net, file, group);
  const bool converts = file.dtype() == DeepSpeedConfig::Dtype::kBf16;
  Training result;
  for (int i = 0; i < micro_batches; ++i) {
    const at::Tensor x = formula({batch, 3}, group.rank());
    const at::Tensor loss = engine.forward(converts ? x.to(at::kBFloat16) : x).to(at::kFloat).square().mean();
    if (i == 0) result.first = loss.item<double>();
    result.last = loss.item<double>();
    engine.backward(loss);
    engine.step();
  }
  EXPECT_EQ(engine.global_steps(), micro_batches / engine.batch().accumulation_steps);
  // What a rank alone would not have: the same weights as the others.
  const auto scope = engine.gather_parameters();
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& parameter : net->parameters()) sum += parameter.detach().to(at::kDouble).sum();
  at::Tensor all = at::empty({group.size()}, at::kDouble);
  group.all_gather(all, sum.reshape({1})).wait();
  EXPECT_TRUE(at::isfinite(all).all().item<bool>());
  EXPECT_TRUE(all.eq(all[0]).all().item<bool>());
  return result;
}

TEST(EngineFilesTest, EachTrains) {
  for (const File& file : kFiles) {
    run_group({"shm", {0, 0}}, [&](Communicator& group) {
      SCOPED_TRACE(file.name);
      const auto config = DeepSpeedConfig::from_text(file.text, std::string(file.name) + ".json");
      const Training training = train(config, group, 4, 16);
      EXPECT_LT(training.last, 0.97 * training.first);
    });
  }
}

// LUMI's own file, commas and all: a batch of 32 over all ranks.
TEST(EngineFilesTest, LumisFileTrains) {
  for (const test::FuzzFile& file : test::fuzz_corpus("deepspeed")) {
    if (file.name != "lumi_repository") continue;
    run_group({"shm", {0, 0}}, [&](Communicator& group) {
      const Training training = train(DeepSpeedConfig::from_text(file.bytes, file.name), group, 16, 16);
      EXPECT_LT(training.last, training.first);
    });
    return;
  }
  FAIL() << "tests/fuzz/deepspeed/lumi_repository is not there";
}

TEST(EngineFilesTest, StateInFilesTrainsAsInMemory) {
  const test::TemporaryFolder folder;
  run_group({"shm", {0, 0}}, [&](Communicator& group) {
    const auto with = [&](const std::string& offload) {
      return train(DeepSpeedConfig::from_text(
                       R"({"train_batch_size": 8, "zero_optimization": {"stage": 3,
                       "stage3_param_persistence_threshold": 10)" +
                           offload + R"(}, "optimizer": {"type": "Adam", "params": {"lr": 0.01}}})",
                       "ds.json"),
                   group, 4, 8);
    };
    const Training plain = with("");
    const Training offloaded =
        with(R"(, "offload_optimizer": {"device": "nvme", "pipeline_read": true, "nvme_path": ")" +
             folder.path().string() + "\"}");
    EXPECT_EQ(offloaded.first, plain.first);
    EXPECT_NEAR(offloaded.last, plain.last, 1e-6);
  });
}

TEST(EngineFilesTest, MonitorsWriteOnRank0) {
  const test::TemporaryFolder folder;
  run_group({"shm", {0, 0}}, [&](Communicator& group) {
    const std::string path = folder.path().string();
    train(DeepSpeedConfig::from_text(R"({"train_batch_size": 8, "wall_clock_breakdown": true,
              "fp16": {"enabled": true, "auto_cast": true, "initial_scale_power": 4},
              "optimizer": {"type": "Adam"},
              "csv_monitor": {"enabled": true, "output_path": ")" +
                                         path + R"(", "job_name": "csv"},
              "tensorboard": {"enabled": true, "output_path": ")" +
                                         path + R"(", "job_name": "events"}})",
                                     "ds.json"),
          group, 4, 3);
  });
  std::stringstream text;
  text << std::ifstream(folder.path() / "csv" / "metrics.csv").rdbuf();
  for (const char* name : {"Train/Samples/train_loss", "Train/Samples/lr", "Train/Samples/loss_scale",
                           "Train/Samples/grad_norm", "Train/Samples/elapsed_time_ms_backward_allreduce"}) {
    EXPECT_THAT(text.str(), HasSubstr(name));
  }
  EXPECT_THAT(text.str(), HasSubstr("\n8,")) << "by samples of all ranks";
  EXPECT_THAT(text.str(), HasSubstr("\n24,"));
  EXPECT_FALSE(std::filesystem::is_empty(folder.path() / "events"));
}

}  // namespace
}  // namespace lockstep
