// Wrong configurations, each with its error.

#include <gtest/gtest.h>
#include <lockstep/deepspeed_config.h>

#include <iterator>

#include "support/config_error.h"

namespace lockstep {
namespace {

struct Malformed {
  const char* text;
  const char* error;  // after "[deepspeed] f:"; of the reader of HJSON: after "[config] f:"
};

const Malformed kNotHjson[] = {
    {"{\"train_batch_size\" 8}", "1:21: expected ':' after the key 'train_batch_size', found '8}'"},
    {"{\"train_batch_size\": 8",
     "1:23: expected '}' for the '{' of line 1, column 1, found the end of the file"},
    {"{\"train_batch_size\": }", "1:22: expected a value, found '}'"},
    {"{\"fp16\": {\"enabled\": true]}", "1:26: expected a key, found ']}'"},
    {"{\"optimizer\": {\"type\": \"Adam}}",
     "1:24: the string has no end: expected \" before the end of the file"},
    {"[{\"train_batch_size\": 8}]", "1:1: expected an object, found '[{\"train_batch_size\": 8}]'"},
    {"{\"fp16\": {\"enabled\": true},\n \"fp16\": {\"enabled\": false}}",
     "2:2: duplicate key 'fp16': it is also at line 1, column 2; remove one of the two"},
    {"train_batch_size", "1:17: expected ':' after the key 'train_batch_size', found the end of the file"},
    {"{a: 1}}", "1:7: expected nothing more after the last '}', found '}'"},
    {"{/* {}", "1:2: the comment has no end: expected '*/'"},
};

const Malformed kUnknown[] = {
    {"{\"train_batchsize\": 8}", "1:2: unknown key 'train_batchsize'; did you mean 'train_batch_size'?"},
    {"{\"train_micro_batch_size_per_device\": 8}",
     "1:2: unknown key 'train_micro_batch_size_per_device'; did you mean 'train_micro_batch_size_per_gpu'?"},
    {"{\"zero\": {}}", "1:2: unknown key 'zero'"},
    {"{\"zero_optimisation\": {}}",
     "1:2: unknown key 'zero_optimisation'; did you mean 'zero_optimization'?"},
    {"{\"fp_16\": {}}", "1:2: unknown key 'fp_16'; did you mean 'fp16'?"},
    {"{\"stage\": 2}", "1:2: unknown key 'stage'; it belongs in zero_optimization"},
    {"{\"lr\": 1e-3}", "1:2: unknown key 'lr'; it belongs in optimizer.params"},
    {"{\"offload_optimizer\": {}}", "1:2: unknown key 'offload_optimizer'"},
    {"{\"zero_optimization.stage\": 2}",
     "1:2: unknown key 'zero_optimization.stage'; write it as stage in zero_optimization"},
    {"{\"zero_optimization\": {\"stages\": 2}}",
     "1:24: unknown key 'stages' in zero_optimization; did you mean 'stage'?"},
    {"{\"zero_optimization\": {\"stage3_prefetch_bucket\": 2}}",
     "1:24: unknown key 'stage3_prefetch_bucket' in zero_optimization; did you mean "
     "'stage3_prefetch_bucket_size'?"},
    {"{\"zero_optimization\": {\"offload_optimizer\": {\"devise\": \"cpu\"}}}",
     "1:46: unknown key 'devise' in zero_optimization.offload_optimizer; did you mean 'device'?"},
    {"{\"fp16\": {\"enable\": true}}", "1:11: unknown key 'enable' in fp16; did you mean 'enabled'?"},
    {"{\"bf16\": {\"loss_scale\": 0}}", "1:11: unknown key 'loss_scale' in bf16; it belongs in fp16"},
    {"{\"optimizer\": {\"typ\": \"Adam\"}}", "1:16: unknown key 'typ' in optimizer; did you mean 'type'?"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"learning_rate\": 1}}}",
     "1:43: unknown key 'learning_rate' in optimizer.params"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"weight_dcay\": 1}}}",
     "1:43: unknown key 'weight_dcay' in optimizer.params; did you mean 'weight_decay'?"},
    {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_steps\": 1}}}",
     "1:47: unknown key 'warmup_steps' in scheduler.params; did you mean 'warmup_type'?"},
    {"{\"activation_checkpointing\": {\"partitioned_activations\": false}}",
     "1:31: unknown key 'partitioned_activations' in activation_checkpointing; did you mean "
     "'partition_activations'?"},
    {"{\"aio\": {\"threads\": 1}}", "1:10: unknown key 'threads' in aio"},
    {"{\"checkpoint\": {\"tag\": \"Warn\"}}", "1:17: unknown key 'tag' in checkpoint"},
    {"{\"flops_profiler\": {\"profile_steps\": 1}}",
     "1:21: unknown key 'profile_steps' in flops_profiler; did you mean 'profile_step'?"},
    {"{\"comms_logger\": {\"prof_op\": []}}",
     "1:19: unknown key 'prof_op' in comms_logger; did you mean 'prof_ops'?"},
    {"{\"timers\": {\"throughputs\": {}}}",
     "1:13: unknown key 'throughputs' in timers; did you mean 'throughput'?"},
    {"{\"tensorboard\": {\"path\": \"x\"}}", "1:18: unknown key 'path' in tensorboard"},
};

const Malformed kValues[] = {
    {"{\"train_batch_size\": 0}", "1:22: train_batch_size must be a whole number from 1 to 1000000000000: 0"},
    {"{\"train_batch_size\": 8.5}",
     "1:22: train_batch_size must be a whole number from 1 to 1000000000000: 8.5"},
    {"{\"train_batch_size\": \"8\"}",
     "1:22: train_batch_size must be a whole number from 1 to 1000000000000: '8'"},
    {"{\"train_batch_size\": 1e400}",
     "1:22: train_batch_size must be a whole number from 1 to 1000000000000: 1e400"},
    {"{\"gradient_accumulation_steps\": 0}",
     "1:33: gradient_accumulation_steps must be a whole number from 1 to 1000000000000: 0"},
    {"{\"gradient_clipping\": -1}", "1:23: gradient_clipping must be a number of at least 0: -1"},
    {"gradient_clipping: nan", "1:20: gradient_clipping must be a number of at least 0: 'nan'"},
    {"{\"gradient_clipping\": null}", "1:23: gradient_clipping must be a number of at least 0: null"},
    {"{\"gradient_predivide_factor\": 0}", "1:31: gradient_predivide_factor must be a number above 0: 0"},
    {"{\"gradient_allreduce_op\": \"max\"}", "1:27: gradient_allreduce_op must be one of mean, sum: 'max'"},
    {"{\"communication_data_type\": \"int8\"}",
     "1:29: communication_data_type must be one of fp32, fp16, bf16: 'int8'"},
    {"{\"prescale_gradients\": 1}", "1:24: prescale_gradients must be true or false: 1"},
    {"prescale_gradients: True\n", "1:21: prescale_gradients must be true or false: 'True'"},
    {"{\"steps_per_print\": -1}", "1:21: steps_per_print must be a whole number of at least 0: -1"},
    {"{\"wall_clock_breakdown\": \"false\"}", "1:26: wall_clock_breakdown must be true or false: 'false'"},
    {"{\"log_level\": \"loud\"}", "1:15: log_level must be one of debug, info, warning, error: 'loud'"},
    {"{\"fp16\": true}", "1:10: fp16 must be an object: true"},
    {"{\"fp16\": {\"enabled\": \"yes\"}}", "1:22: fp16.enabled must be true or false: 'yes'"},
    {"{\"fp16\": {\"loss_scale\": true}}", "1:25: fp16.loss_scale must be a number of at least 0: true"},
    {"{\"fp16\": {\"loss_scale\": -1}}", "1:25: fp16.loss_scale must be a number of at least 0: -1"},
    {"{\"fp16\": {\"loss_scale\": 1e999}}", "1:25: fp16.loss_scale must be a number of at least 0: 1e999"},
    {"{\"fp16\": {\"loss_scale_window\": -1}}",
     "1:32: fp16.loss_scale_window must be a whole number of at least 0: -1"},
    {"{\"fp16\": {\"min_loss_scale\": 0.5}}",
     "1:29: fp16.min_loss_scale must be a whole number of at least 0: 0.5"},
    {"{\"fp16\": {\"initial_scale_power\": 200}}",
     "1:34: fp16.initial_scale_power must be a whole number from 0 to 127: 200"},
    {"{\"fp16\": {\"hysteresis\": 0}}", "1:25: fp16.hysteresis must be a whole number of at least 1: 0"},
    {"{\"zero_optimization\": {\"stage\": 4}}",
     "1:33: zero_optimization.stage must be a whole number from 0 to 3: 4"},
    {"{\"zero_optimization\": {\"stage\": -1}}",
     "1:33: zero_optimization.stage must be a whole number from 0 to 3: -1"},
    {"{\"zero_optimization\": 2}", "1:23: zero_optimization must be an object: 2"},
    {"{\"zero_optimization\": {\"reduce_bucket_size\": 0}}",
     "1:46: zero_optimization.reduce_bucket_size must be a whole number of at least 1: 0"},
    {"{\"zero_optimization\": {\"allgather_bucket_size\": -5}}",
     "1:49: zero_optimization.allgather_bucket_size must be a whole number of at least 0: -5"},
    {"{\"zero_optimization\": {\"stage3_prefetch_bucket_size\": -1}}",
     "1:55: zero_optimization.stage3_prefetch_bucket_size must be a whole number of at least 0: -1"},
    {"{\"zero_optimization\": {\"overlap_comm\": \"on\"}}",
     "1:40: zero_optimization.overlap_comm must be true or false: 'on'"},
    {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"gpu\"}}}",
     "1:56: zero_optimization.offload_optimizer.device must be one of none, cpu, nvme: 'gpu'"},
    {"{\"zero_optimization\": {\"offload_optimizer\": {\"ratio\": 1.5}}}",
     "1:55: zero_optimization.offload_optimizer.ratio must be a number from 0 to 1: 1.5"},
    {"{\"zero_optimization\": {\"offload_optimizer\": \"cpu\"}}",
     "1:45: zero_optimization.offload_optimizer must be an object: 'cpu'"},
    {"{\"aio\": {\"queue_depth\": 0}}", "1:25: aio.queue_depth must be a whole number from 1 to 32768: 0"},
    {"{\"tensorboard\": {\"output_path\": 5}}", "1:33: tensorboard.output_path must be a string: 5"},
    {"{\"comms_logger\": {\"prof_ops\": [\"allreduce\"]}}",
     "1:19: comms_logger.prof_ops names an unknown collective: 'allreduce'; did you mean 'all_reduce'?"},
    {"{\"comms_logger\": {\"enabled\": true, \"prof_all\": false}}",
     "1:36: comms_logger is enabled, prof_all is false and prof_ops is empty, so nothing is measured: "
     "name operations, or remove prof_all"},
    {"{\"comms_logger\": {\"prof_ops\": [1]}}",
     "1:31: comms_logger.prof_ops must be a list of strings: an array"},
    {"{\"flops_profiler\": {\"profile_step\": 0}}",
     "1:37: flops_profiler.profile_step must be a whole number of at least 1: 0"},
    {"{\"flops_profiler\": {\"recompute_fwd_factor\": 2}}",
     "1:45: flops_profiler.recompute_fwd_factor must be a number from 0 to 1: 2"},
    {"{\"checkpoint\": {\"tag_validation\": \"STOP\"}}",
     "1:35: checkpoint.tag_validation must be one of Ignore, Warn, Fail: 'STOP'"},
};

const Malformed kOptimizers[] = {
    {"{\"optimizer\": \"Adam\"}", "1:15: optimizer must be an object: 'Adam'"},
    {"{\"optimizer\": {\"type\": \"Adamm\"}}",
     "1:24: optimizer.type must be one of Adam, AdamW, Adagrad, Lamb, Lion, SGD, RMSprop, LBFGS: 'Adamm'"},
    {"{optimizer: {type: Adam, params: {lr: 1}}}",
     "1:43: expected '}' for the '{' of line 1, column 13, found the end of the file; the unquoted "
     "string at line 1, column 20 reaches to the end of its line"},
    {"optimizer: {\n type: Adam, # mine\n}",
     "2:8: optimizer.type must be one of Adam, AdamW, Adagrad, Lamb, Lion, SGD, RMSprop, LBFGS: 'Adam, # "
     "mine'; an unquoted string reaches to the end of its line"},
    {"{\"optimizer\": {\"type\": \"auto\"}}",
     "1:24: optimizer.type must be one of Adam, AdamW, Adagrad, Lamb, Lion, SGD, RMSprop, LBFGS: 'auto'"},
    {"{\"optimizer\": {\"params\": {\"lr\": 1}}}",
     "1:15: optimizer.params is set without optimizer.type, which the parameters depend on"},
    {"{\"optimizer\": {\"type\": \"OneBitAdam\"}}",
     "1:24: optimizer.type 'OneBitAdam' is not supported: it compresses gradients to bits, which changes the "
     "results"},
    {"{\"optimizer\": {\"type\": \"ZeroOneAdam\"}}",
     "1:24: optimizer.type 'ZeroOneAdam' is not supported: it compresses gradients to bits, which changes "
     "the results"},
    {"{\"optimizer\": {\"type\": \"muon\"}}",
     "1:24: optimizer.type 'muon' is not supported: it orthogonalises whole matrices, which a flat shard "
     "does not hold"},
    {"{\"optimizer\": {\"type\": \"MuAdam\"}}",
     "1:24: optimizer.type 'MuAdam' is not supported: it needs widths that the Python package mup stores in "
     "the model"},
    {"{\"optimizer\": {\"type\": \"NAdam\"}}",
     "1:24: optimizer.type 'NAdam' is not supported: LibTorch has no such optimizer"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": \"1e-3\"}}}",
     "1:49: optimizer.params.lr must be a number of at least 0: '1e-3'"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": -1}}}",
     "1:49: optimizer.params.lr must be a number of at least 0: -1"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9]}}}",
     "1:52: optimizer.params.betas must be a list of two numbers of at least 0 and below 1: an array"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9, 1]}}}",
     "1:52: optimizer.params.betas must be a list of two numbers of at least 0 and below 1: an array"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"momentum\": 0.9}}}",
     "1:43: optimizer.params.momentum is not a parameter of Adam: it belongs to SGD, RMSprop"},
    {"{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"betas\": [0.9, 0.99]}}}",
     "1:42: optimizer.params.betas is not a parameter of SGD: it belongs to Adam, AdamW, Lamb, Lion"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"max_grad_norm\": 1.0}}}",
     "1:43: optimizer.params.max_grad_norm is not supported: optimizers do not clip: set gradient_clipping"},
    {"{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 1e300}}}",
     "1:42: the learning rate is more than a float32 can hold: 1e+300"},
    {"{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"adam_w_mode\": false}}}",
     "1:44: adam_w_mode false contradicts the type AdamW: use the type Adam"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"amsgrad\": true}}}",
     "1:43: amsgrad needs torch_adam: set torch_adam to true"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"torch_adam\": true, \"bias_correction\": false}}}",
     "1:63: torch_adam always corrects the bias: set torch_adam to false"},
    {"{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"nesterov\": true}}}",
     "1:42: nesterov needs momentum above 0: set momentum, which is 0"},
    {"{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"nesterov\": true, \"momentum\": 0.9, \"dampening\": "
     "0.5}}}",
     "1:42: nesterov needs dampening 0: remove dampening, which is 0.5"},
    {"{\"optimizer\": {\"type\": \"LBFGS\", \"params\": {\"line_search_fn\": \"armijo\"}}}",
     "1:62: optimizer.params.line_search_fn must be strong_wolfe: 'armijo'"},
    {"{\"optimizer\": {\"type\": \"LBFGS\"}, \"zero_optimization\": {\"stage\": 1}}",
     "1:16: LBFGS cannot be sharded, and the ZeRO stage is 1: its history is of all parameters at once; use "
     "stage 0, or "
     "an optimizer that works element by element"},
    {"{\"optimizer\": {\"type\": \"Lamb\"}, \"zero_optimization\": {\"stage\": 2}}",
     "1:16: Lamb cannot be sharded, and the ZeRO stage is 2: its trust ratio needs the norms of whole "
     "parameters; use "
     "stage 0, or an optimizer that works element by element"},
    {"{\"optimizer\": {\"type\": \"SGD\"}, \"zero_optimization\": {\"stage\": 1}, "
     "\"zero_allow_untested_optimizer\": "
     "false}",
     "1:67: zero_allow_untested_optimizer is false, and DeepSpeed does not know SGD under ZeRO: set it to "
     "true, which is "
     "the default here"},
    {"{\"optimizer\": {\"type\": \"SGD\"}, \"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": "
     "{\"device\": "
     "\"cpu\"}}}",
     "1:88: SGD has no kernel for the CPU, and the optimizer is offloaded: use Adam, AdamW, Adagrad or Lion, "
     "or set "
     "zero_force_ds_cpu_optimizer to false"},
};

const Malformed kSchedulers[] = {
    {"{\"scheduler\": {\"type\": \"StepLR\"}}",
     "1:24: scheduler.type must be one of WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest, OneCycle: "
     "'StepLR'"},
    {"{\"scheduler\": {\"params\": {\"warmup_num_steps\": 1}}}",
     "1:15: scheduler.params is set without scheduler.type, which the parameters depend on"},
    {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 0}}}",
     "1:67: scheduler.params.warmup_num_steps must be a whole number of at least 1: 0"},
    {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": \"cubic\"}}}",
     "1:62: scheduler.params.warmup_type must be one of log, linear: 'cubic'"},
    {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"total_num_steps\": 10}}}",
     "1:47: scheduler.params.total_num_steps is not a parameter of WarmupLR: it belongs to WarmupDecayLR, "
     "WarmupCosineLR"},
    {"{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}",
     "1:2: WarmupDecayLR needs total_num_steps, and \"auto\" cannot determine it: set a number"},
    {"{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": \"auto\"}}}",
     "1:41: WarmupDecayLR needs total_num_steps, and \"auto\" cannot determine it: set a number"},
    {"{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 10, "
     "\"warmup_num_steps\": 20}}}",
     "1:53: total_num_steps is less than warmup_num_steps, 10 and 20: raise it"},
    {"{\"scheduler\": {\"type\": \"LRRangeTest\", \"params\": {\"lr_range_test_step_size\": 0}}}",
     "1:77: scheduler.params.lr_range_test_step_size must be a whole number of at least 1: 0"},
    {"{\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1}}}",
     "1:36: OneCycle needs cycle_max_lr, and \"auto\" cannot determine it: set a number"},
    {"{\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1, \"cycle_max_lr\": 0.1}}}",
     "1:47: cycle_min_lr is above cycle_max_lr, 1 and 0.1: lower it"},
    {"{\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_first_step_size\": -1}}}",
     "1:72: scheduler.params.cycle_first_step_size must be a whole number of at least 1: -1"},
};

const Malformed kRefused[] = {
    {"{\"wandb\": {\"enabled\": true}}",
     "1:2: wandb is not supported: Weights & Biases has no C++ client: use tensorboard, csv_monitor or "
     "MLflow"},
    {"{\"comet\": {\"enabled\": true}}",
     "1:2: comet is not supported: Comet has no C++ client: use tensorboard, csv_monitor or MLflow"},
    {"{\"amp\": {\"enabled\": true}}",
     "1:2: amp is not supported: Apex is a Python library: use fp16, bf16 or torch_autocast"},
    {"{\"autotuning\": {\"enabled\": true}}",
     "1:2: autotuning is not supported: there is no search over settings"},
    {"{\"compression_training\": {\"x\": {}}}",
     "1:2: compression_training is not supported: models are not quantised or pruned"},
    {"{\"progressive_layer_drop\": {\"enabled\": true}}",
     "1:2: progressive_layer_drop is not supported: every layer takes part in every step"},
    {"{\"eigenvalue\": {\"enabled\": true}}", "1:2: eigenvalue is not supported: only quantisation uses it"},
    {"{\"data_efficiency\": {\"enabled\": true}}",
     "1:2: data_efficiency is not supported: samples are drawn at random, and no token is dropped"},
    {"{\"elasticity\": {\"enabled\": 1}}",
     "1:2: elasticity is not supported: set the batch keys; a job can resume on another number of "
     "ranks"},
    {"{\"sparse_attention\": {\"mode\": \"fixed\"}}",
     "1:2: sparse_attention is not supported: the model defines its attention"},
    {"{\"tensor_parallel\": {\"autotp_size\": 2}}",
     "1:2: tensor_parallel is not supported: layers are not split over ranks"},
    {"{\"expert_parallel\": {\"enabled\": true}}",
     "1:2: expert_parallel is not supported: experts are not distributed over ranks"},
    {"{\"pipeline\": {\"stages\": 2}}",
     "1:2: pipeline is not supported: layers are not distributed over ranks"},
    {"{\"hybrid_engine\": {\"enabled\": true}}",
     "1:2: hybrid_engine is not supported: there is no inference engine"},
    {"{\"compile\": {\"deepcompile\": true}}", "1:2: compile is not supported: LibTorch compiles no graphs"},
    {"{\"sparse_gradients\": true}",
     "1:22: sparse_gradients can only be false here, not true: gradients are reduced dense"},
    {"{\"disable_allgather\": true}",
     "1:23: disable_allgather can only be false here, not true: without the gather, ranks would differ"},
    {"{\"zero_optimization\": {\"contiguous_gradients\": false}}",
     "1:48: zero_optimization.contiguous_gradients can only be true here, not false: gradients are computed "
     "in one flat buffer"},
    {"{\"zero_optimization\": {\"reduce_scatter\": false}}",
     "1:42: zero_optimization.reduce_scatter can only be true here, not false: gradients go only to the rank "
     "that owns "
     "their shard"},
    {"{\"zero_optimization\": {\"zero_quantized_weights\": true}}",
     "1:50: zero_optimization.zero_quantized_weights can only be false here, not true: quantised "
     "communication changes "
     "the results"},
    {"{\"zero_optimization\": {\"zero_hpz_partition_size\": 8}}",
     "1:51: zero_optimization.zero_hpz_partition_size can only be 1 here, not 8: parameters are sharded over "
     "all ranks, not over groups of ranks"},
    {"{\"zero_optimization\": {\"mics_shard_size\": 4}}",
     "1:43: zero_optimization.mics_shard_size can only be -1 here, not 4: parameters are sharded over all "
     "ranks, not over groups of ranks"},
    {"{\"zero_optimization\": {\"zenflow\": {\"topk_ratio\": 0.1}}}",
     "1:24: zero_optimization.zenflow is not supported: it applies part of the gradients late, which changes "
     "the "
     "results"},
    {"{\"zero_optimization\": {\"leaf_module\": {\"classes\": [\"x\"]}}}",
     "1:24: zero_optimization.leaf_module is not supported: the program chooses the modules that are units "
     "of stage 3"},
    {"{\"aio\": {\"use_gds\": true}}",
     "1:21: aio.use_gds can only be false here, not true: GPUDirect Storage is not used"},
    {"{\"bf16\": {\"bf16_optimizer_states\": true}}",
     "1:36: bf16.bf16_optimizer_states can only be false here, not true: moments are fp32"},
    {"{\"fp16\": {\"fp16_master_weights_and_grads\": true}}",
     "1:44: fp16.fp16_master_weights_and_grads can only be false here, not true: master weights are fp32"},
    {"{\"checkpoint\": {\"use_node_local_storage\": true}}",
     "1:43: checkpoint.use_node_local_storage can only be false here, not true: a checkpoint is one folder "
     "that all "
     "ranks see"},
    {"{\"activation_checkpointing\": {\"number_checkpoints\": 4}}",
     "1:53: activation_checkpointing.number_checkpoints can only be null here, not 4: only "
     "contiguous_memory_optimization reads it"},
};

const Malformed kTogether[] = {
    {"{\"prescale_gradients\": true, \"gradient_predivide_factor\": 2}",
     "1:30: prescale_gradients divides by everything before the sum, which leaves nothing for "
     "gradient_predivide_factor: "
     "set one of the two"},
    {"{\"gradient_allreduce_op\": \"sum\", \"prescale_gradients\": true}",
     "1:2: gradient_allreduce_op sum divides nothing, and prescale_gradients is set: use mean, or remove it"},
    {"{\"fp16\": {\"enabled\": true, \"loss_scale_window\": 0}}",
     "1:28: fp16.loss_scale_window must be at least 1 where the loss scale is dynamic: 0"},
    {"{\"fp16\": {\"enabled\": true, \"min_loss_scale\": 0}}",
     "1:28: fp16.min_loss_scale must be at least 1 where the loss scale is dynamic: 0"},
    {"{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}",
     "1:38: fp16 and bf16 are both enabled: a model has one dtype, disable one of the two"},
    {"{\"bf16\": {\"enabled\": true}, \"torch_autocast\": {\"enabled\": true}}",
     "1:48: torch_autocast is for a model in fp32, and bf16 is enabled: disable one of the two"},
    {"{\"torch_autocast\": {\"dtype\": \"float32\"}}",
     "1:21: torch_autocast.dtype must be one of fp16, bf16: fp32 casts nothing"},
    {"{\"data_types\": {\"grad_accum_dtype\": \"bf16\"}}",
     "1:17: data_types.grad_accum_dtype must be fp32 or the model's dtype, which is fp32: bf16"},
    {"{\"gradient_allreduce_op\": \"sum\", \"zero_optimization\": {\"stage\": 3}}",
     "1:2: gradient_allreduce_op sum is for stages 0 to 2, and the stage is 3: use mean"},
    {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}}",
     "1:46: offload_optimizer.device cpu needs stage 1, 2 or 3, and it is 0: set stage, or "
     "offload_optimizer.device to none"},
    {"{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
     "\"/x\"}}}",
     "1:58: offload_optimizer.device nvme needs stage 3, and it is 2: set stage to 3, or "
     "offload_optimizer.device to cpu"},
    {"{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"}}}",
     "1:36: offload_optimizer.device nvme needs offload_optimizer.nvme_path, a folder on that disk: set it"},
    {"{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}}}",
     "1:75: offload_optimizer.ratio 0.5 needs stage 3, and the stage is 2: set it to 1"},
    {"{\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"}}}",
     "1:54: offload_param.device cpu needs stage 3, and it is 2: set stage to 3, or offload_param.device to "
     "none"},
    {"{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\"}}}",
     "1:54: offload_param.device nvme is not supported, parameters are offloaded to host memory only: use "
     "cpu"},
    {"{\"zero_optimization\": {\"stage\": 1, \"cpu_offload\": true, \"offload_optimizer\": {}}}",
     "1:36: cpu_offload is the old name of offload_optimizer, which is at f:1:57: keep the new one"},
    {"{\"aio\": {\"thread_count\": 1, \"intra_op_parallelism\": 2}}",
     "1:29: 'intra_op_parallelism' sets aio.intra_op_parallelism, which is already set at f:1:10: remove one "
     "of the two"},
    {"{\"bf16\": {}, \"bfloat16\": {}}",
     "1:14: 'bfloat16' sets bf16, which is already set at f:1:2: remove one of the two"},
};

std::string config_error(const char* text) {
  return test::error_of([&] { DeepSpeedConfig::from_text(text, "f"); });
}

template <size_t size>
void expect_errors(const Malformed (&cases)[size], const std::string& prefix) {
  for (const Malformed& wrong : cases)
    EXPECT_EQ(config_error(wrong.text), prefix + wrong.error) << wrong.text;
}

TEST(MalformedConfigTest, IsNoHjson) { expect_errors(kNotHjson, "[config] f:"); }
TEST(MalformedConfigTest, HasAnUnknownKey) { expect_errors(kUnknown, "[deepspeed] f:"); }
TEST(MalformedConfigTest, HasABadValue) { expect_errors(kValues, "[deepspeed] f:"); }
TEST(MalformedConfigTest, HasABadScheduler) { expect_errors(kSchedulers, "[deepspeed] f:"); }
TEST(MalformedConfigTest, AsksForWhatIsRefused) { expect_errors(kRefused, "[deepspeed] f:"); }
TEST(MalformedConfigTest, ContradictsItself) { expect_errors(kTogether, "[deepspeed] f:"); }

TEST(MalformedConfigTest, HasABadOptimizer) {
  for (const Malformed& wrong : kOptimizers) {
    const std::string error = config_error(wrong.text);
    EXPECT_EQ(error.substr(error.find("] f:") + 4), wrong.error) << wrong.text;
  }
}

static_assert(std::size(kNotHjson) + std::size(kUnknown) + std::size(kValues) + std::size(kOptimizers) +
                  std::size(kSchedulers) + std::size(kRefused) + std::size(kTogether) >=
              100);

}  // namespace
}  // namespace lockstep
