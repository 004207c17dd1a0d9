#include "support/deepspeed_files.h"

#include <stdexcept>

#include "support/fuzz.h"

namespace lockstep::test {
namespace {

constexpr DeepSpeedFile kFiles[] = {
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

}  // namespace

std::span<const DeepSpeedFile> deepspeed_files() { return kFiles; }

std::string lumis_repository_file() {
  for (const FuzzFile& file : fuzz_corpus("deepspeed")) {
    if (file.name == "lumi_repository") return file.bytes;
  }
  throw std::runtime_error("tests/fuzz/deepspeed/lumi_repository is not there");
}

}  // namespace lockstep::test
