#include "config/deepspeed/keys.h"

#include <map>

namespace lockstep::deepspeed {
namespace {

using C = DeepSpeedConfig;

struct KeyRules {
  Range range = {};
  std::vector<std::string> aliases = {};
  uint32_t types = ~0U;
};

// Adds the keys of one section to the table. S is the struct of the section. `get` is a lambda without
// state that takes a DeepSpeedConfig, const or not, and returns the S in it.
template <typename S>
class Section {
 public:
  template <typename Get>
  Section(std::vector<Key>& keys, std::string path, Get)
      : keys_(keys),
        path_(std::move(path)),
        get_([](DeepSpeedConfig& config) -> S& { return Get{}(config); }),
        get_constant_([](const DeepSpeedConfig& config) -> const S& { return Get{}(config); }) {}

  template <typename T>
  Section& honour(const std::string& name, T S::*field, std::string text, KeyRules rules = {}) {
    Key key = named(name, Key::Kind::kHonoured, std::move(text));
    key.aliases = std::move(rules.aliases);
    key.types = rules.types;
    key.read = [get = get_, field, range = rules.range](DeepSpeedConfig& config,
                                                        const config::HjsonNode& node) {
      get(config).*field = read_value<T>(node, range);
    };
    key.write = [get = get_constant_, field](const DeepSpeedConfig& config) {
      return write_value(get(config).*field);
    };
    keys_.push_back(std::move(key));
    return *this;
  }

  Section& fix(const std::string& name, std::vector<std::string> values, std::string why,
               KeyRules rules = {}) {
    Key key = named(name, Key::Kind::kFixed, std::move(why));
    key.values = std::move(values);
    key.aliases = std::move(rules.aliases);
    key.types = rules.types;
    keys_.push_back(std::move(key));
    return *this;
  }

  Section& refuse(const std::string& name, std::vector<std::string> switches, std::string why) {
    Key key = named(name, Key::Kind::kRefused, std::move(why));
    key.switches = std::move(switches);
    keys_.push_back(std::move(key));
    return *this;
  }

  // The old name of another key.
  Section& rename(const std::string& name, std::string text,
                  std::function<void(DeepSpeedConfig&, const config::HjsonNode&)> read) {
    Key key = named(name, Key::Kind::kHonoured, std::move(text));
    key.read = std::move(read);
    keys_.push_back(std::move(key));
    return *this;
  }

 private:
  Key named(const std::string& name, Key::Kind kind, std::string text) const {
    Key key;
    key.path = path_.empty() ? name : path_ + "." + name;
    key.kind = kind;
    key.text = std::move(text);
    return key;
  }

  std::vector<Key>& keys_;
  std::string path_;
  S& (*get_)(DeepSpeedConfig&);
  const S& (*get_constant_)(const DeepSpeedConfig&);
};

void add_training_keys(std::vector<Key>& keys) {
  constexpr double kMostSamples = 1e12;
  const KeyRules positive = {.range = {.least = 1, .most = kMostSamples}};
  Section<C>(
      keys, "", [](auto& c) -> auto& { return c; })
      .honour("train_batch_size", &C::train_batch_size, "samples of all ranks in one step of the optimizer",
              positive)
      .honour("train_micro_batch_size_per_gpu", &C::train_micro_batch_size_per_gpu,
              "samples of one rank in one forward pass", positive)
      .honour("gradient_accumulation_steps", &C::gradient_accumulation_steps,
              "forward passes for one step of the optimizer", positive)
      .honour("managed_gradient_accumulation", &C::managed_gradient_accumulation,
              "false: the program decides when a step is due, every step() is an update")
      .honour("gradient_clipping", &C::gradient_clipping, "largest norm of all gradients together; 0: off",
              {.range = {.least = 0}})
      .honour("gradient_allreduce_op", &C::gradient_allreduce_op, "mean, or sum up to stage 2")
      .honour("prescale_gradients", &C::prescale_gradients, "divide before the sum instead of after")
      .honour("gradient_predivide_factor", &C::gradient_predivide_factor,
              "divide by this before the sum and by the rest after it; not with prescale_gradients",
              {.range = {.least = 0, .above = true}})
      .honour("communication_data_type", &C::communication_data_type,
              "dtype of gradients between ranks; null: that of the gradients")
      .honour("zero_allow_untested_optimizer", &C::zero_allow_untested_optimizer,
              "false: ZeRO accepts only Adam, AdamW, Adagrad and Lion, which is DeepSpeed's default")
      .honour("zero_force_ds_cpu_optimizer", &C::zero_force_ds_cpu_optimizer,
              "with offload: accept only optimizers with a CPU kernel")
      .honour(
          "dataloader_drop_last", &C::dataloader_drop_last,
          "of the engine's `loader()`; in a trainer true is refused, because the program creates its loader")
      .fix("sparse_gradients", {"false"}, "gradients are reduced dense")
      .fix("disable_allgather", {"false"}, "without the gather, ranks would differ")
      .fix("disable_python_gc", {"false"}, "Lockstep runs no Python")
      .fix("graph_harvesting", {"false"}, "CUDA graphs are an option of the trainer")
      .fix("sequence_parallel_size", {"1"}, "there is no sequence parallelism")
      .fix("seq_parallel_communication_data_type", {"\"fp32\"", "null"}, "there is no sequence parallelism")
      .fix("use_data_before_expert_parallelism", {"false"}, "there are no experts")
      .fix("vocabulary_size", {"null"}, "DeepSpeed only warns about it: remove the line");

  Section<C::ActivationCheckpointing>(
      keys, "activation_checkpointing", [](auto& c) -> auto& { return c.activation_checkpointing; })
      .honour("cpu_checkpointing", &C::ActivationCheckpointing::cpu_checkpointing,
              "true is refused: activations stay on their device")
      .fix("partition_activations", {"false"}, "there is no tensor parallelism to partition over")
      .fix("contiguous_memory_optimization", {"false"}, "LibTorch's allocator keeps the inputs")
      .fix("number_checkpoints", {"null"}, "only contiguous_memory_optimization reads it")
      .fix("synchronize_checkpoint_boundary", {"false"},
           "streams order the work; nothing waits at the end of a unit")
      .fix("profile", {"false"}, "wall_clock_breakdown reports the times");

  Section<C::Checkpoint>(
      keys, "checkpoint", [](auto& c) -> auto& { return c.checkpoint; })
      .honour("tag_validation", &C::Checkpoint::tag_validation,
              "check that all ranks save under the same tag: Ignore, Warn or Fail")
      .fix("load_universal", {"false", "true"}, "every checkpoint loads on any world size and stage")
      .fix("use_node_local_storage", {"false"}, "a checkpoint is one folder that all ranks see")
      .fix("parallel_write.pipeline_stage", {"false"}, "there is no pipeline")
      .fix("writer", {"null"}, "the checkpoint writer is asynchronous already")
      .fix("checkpoint_serialization", {"true"}, "checkpoints are safetensors files");
}

using Optimizer = C::Optimizer;
using OptimizerType = Optimizer::Type;

template <typename... Types>
uint32_t of(Types... types) {
  return (type_bit(types) | ...);
}

constexpr Range kFraction = {.least = 0, .most = 1, .below = true};

void add_optimizer_keys(std::vector<Key>& keys) {
  const auto get = [](auto& c) -> auto& { return c.optimizer; };
  const uint32_t adams = of(OptimizerType::kAdam, OptimizerType::kAdamW);
  const uint32_t with_betas = adams | of(OptimizerType::kLamb, OptimizerType::kLion);
  Section<Optimizer>(keys, "optimizer", get)
      .honour("type", &Optimizer::type, "its name, in any case; without it the program creates the optimizer")
      .fix("legacy_fusion", {"false"}, "flat buffers need one fused call already");
  Section<Optimizer>(keys, "optimizer.params", get)
      .honour("lr", &Optimizer::lr, "learning rate", {.range = kNotNegative})
      .honour("betas", &Optimizer::betas, "decay of both moments", {.range = kFraction, .types = with_betas})
      .honour("eps", &Optimizer::eps, "added to the denominator",
              {.range = kNotNegative,
               .types = adams | of(OptimizerType::kLamb, OptimizerType::kAdagrad, OptimizerType::kRmsprop)})
      .honour("weight_decay", &Optimizer::weight_decay, "with torch_adam AdamW's default is 0.01",
              {.range = kNotNegative, .types = ~of(OptimizerType::kLbfgs)})
      .honour("adam_w_mode", &Optimizer::adam_w_mode, "false: Adam with weight decay in the gradient",
              {.types = adams})
      .honour("torch_adam", &Optimizer::torch_adam, "the arithmetic of torch's fused CPU kernels",
              {.types = adams})
      .honour("bias_correction", &Optimizer::bias_correction, "of the moments",
              {.types = adams | of(OptimizerType::kLamb)})
      .honour("amsgrad", &Optimizer::amsgrad, "with torch_adam only", {.types = adams})
      .fix("fp32_optimizer_states", {"true"}, "moments are fp32",
           {.types = adams | of(OptimizerType::kLion, OptimizerType::kAdagrad)})
      .honour("momentum", &Optimizer::momentum, "of the update",
              {.range = kNotNegative, .types = of(OptimizerType::kSgd, OptimizerType::kRmsprop)})
      .honour("dampening", &Optimizer::dampening, "of the momentum", {.types = of(OptimizerType::kSgd)})
      .honour("nesterov", &Optimizer::nesterov, "look ahead; needs momentum and no dampening",
              {.types = of(OptimizerType::kSgd)})
      .honour("alpha", &Optimizer::alpha, "decay of the squared gradients",
              {.range = kFraction, .types = of(OptimizerType::kRmsprop)})
      .honour("centered", &Optimizer::centered, "divide by the variance",
              {.types = of(OptimizerType::kRmsprop)})
      .honour("lr_decay", &Optimizer::lr_decay, "of the learning rate",
              {.range = kNotNegative, .types = of(OptimizerType::kAdagrad)})
      .honour("initial_accumulator_value", &Optimizer::initial_accumulator_value, "of the sum of squares",
              {.range = kNotNegative, .types = of(OptimizerType::kAdagrad)})
      .honour("max_coeff", &Optimizer::max_coeff, "the largest trust ratio",
              {.range = {.least = 0, .above = true}, .types = of(OptimizerType::kLamb)})
      .honour("min_coeff", &Optimizer::min_coeff, "the smallest trust ratio",
              {.range = kNotNegative, .types = of(OptimizerType::kLamb)})
      .fix("eps_inside_sqrt", {"false"}, "eps is added after the square root",
           {.types = of(OptimizerType::kLamb)})
      .honour("max_iter", &Optimizer::max_iter, "iterations of a step",
              {.range = kAtLeastOne, .types = of(OptimizerType::kLbfgs)})
      .honour("max_eval", &Optimizer::max_eval, "evaluations of a step; null: 1.25 for each iteration",
              {.range = kAtLeastOne, .types = of(OptimizerType::kLbfgs)})
      .honour("tolerance_grad", &Optimizer::tolerance_grad, "a smaller gradient ends the step",
              {.range = kNotNegative, .types = of(OptimizerType::kLbfgs)})
      .honour("tolerance_change", &Optimizer::tolerance_change, "a smaller change ends the step",
              {.range = kNotNegative, .types = of(OptimizerType::kLbfgs)})
      .honour("history_size", &Optimizer::history_size, "number of updates that are kept",
              {.range = kAtLeastOne, .types = of(OptimizerType::kLbfgs)})
      .honour("line_search_fn", &Optimizer::line_search_fn, "strong_wolfe or null",
              {.types = of(OptimizerType::kLbfgs)})
      .refuse("max_grad_norm", {}, "optimizers do not clip: set gradient_clipping");
}

using Scheduler = C::Scheduler;
using SchedulerType = Scheduler::Type;

void add_warmup_keys(Section<Scheduler>& params) {
  const uint32_t rates = type_bit(SchedulerType::kWarmupLr) | type_bit(SchedulerType::kWarmupDecayLr);
  const uint32_t cosine = type_bit(SchedulerType::kWarmupCosineLr);
  params
      .honour("total_num_steps", &Scheduler::total_num_steps, "steps of the whole training; required",
              {.range = kAtLeastOne, .types = type_bit(SchedulerType::kWarmupDecayLr) | cosine})
      .honour("warmup_min_lr", &Scheduler::warmup_min_lr, "where the warm-up begins",
              {.range = kNotNegative, .types = rates})
      .honour("warmup_max_lr", &Scheduler::warmup_max_lr, "where it ends; null: the optimizer's rate",
              {.range = kNotNegative, .types = rates})
      .honour("warmup_num_steps", &Scheduler::warmup_num_steps, "steps of the warm-up; 1 counts as 2",
              {.range = kAtLeastOne, .types = rates | cosine})
      .honour("warmup_type", &Scheduler::warmup_type, "log or linear", {.types = rates | cosine})
      .honour("warmup_min_ratio", &Scheduler::warmup_min_ratio,
              "where the warm-up begins, of the optimizer's rate", {.range = kNotNegative, .types = cosine})
      .honour("cos_min_ratio", &Scheduler::cos_min_ratio, "where the cosine ends, of the optimizer's rate",
              {.range = kNotNegative, .types = cosine});
}

void add_range_test_keys(Section<Scheduler>& params) {
  const uint32_t types = type_bit(SchedulerType::kLrRangeTest);
  params
      .honour("lr_range_test_min_lr", &Scheduler::lr_range_test_min_lr, "where the test begins",
              {.range = {.least = 0, .above = true}, .types = types})
      .honour("lr_range_test_step_size", &Scheduler::lr_range_test_step_size, "steps of an interval",
              {.range = kAtLeastOne, .types = types})
      .honour("lr_range_test_step_rate", &Scheduler::lr_range_test_step_rate, "growth in an interval",
              {.range = kNotNegative, .types = types})
      .honour("lr_range_test_staircase", &Scheduler::lr_range_test_staircase,
              "increase only between intervals", {.types = types});
}

void add_cycle_keys(Section<Scheduler>& params) {
  const uint32_t types = type_bit(SchedulerType::kOneCycle);
  const KeyRules not_negative = {.range = kNotNegative, .types = types};
  const KeyRules at_least_one = {.range = kAtLeastOne, .types = types};
  const KeyRules fraction = {.range = {.least = 0, .most = 1, .below = true}, .types = types};
  params.honour("cycle_min_lr", &Scheduler::cycle_min_lr, "at both ends of the cycle; required", not_negative)
      .honour("cycle_max_lr", &Scheduler::cycle_max_lr, "in its middle; required", not_negative)
      .honour("decay_lr_rate", &Scheduler::decay_lr_rate, "after the cycle", not_negative)
      .honour("cycle_first_step_size", &Scheduler::cycle_first_step_size, "steps upward", at_least_one)
      .honour("cycle_second_step_size", &Scheduler::cycle_second_step_size, "steps downward; null: as many",
              at_least_one)
      .honour("cycle_first_stair_count", &Scheduler::cycle_first_stair_count,
              "stairs upward; 0: a linear increase", not_negative)
      .honour("cycle_second_stair_count", &Scheduler::cycle_second_stair_count,
              "stairs downward; null: as many", not_negative)
      .honour("decay_step_size", &Scheduler::decay_step_size, "steps of the decay; 0: none", not_negative)
      .honour("cycle_momentum", &Scheduler::cycle_momentum, "momentum falls while the rate rises",
              {.types = types})
      .honour("cycle_min_mom", &Scheduler::cycle_min_mom, "smallest momentum", fraction)
      .honour("cycle_max_mom", &Scheduler::cycle_max_mom, "largest momentum", fraction)
      .honour("decay_mom_rate", &Scheduler::decay_mom_rate, "of the momentum, after the cycle", not_negative);
}

void add_scheduler_keys(std::vector<Key>& keys) {
  const auto get = [](auto& c) -> auto& { return c.scheduler; };
  Section<Scheduler>(keys, "scheduler", get)
      .honour("type", &Scheduler::type, "its name; without it the rate is the optimizer's");
  Section<Scheduler> params(keys, "scheduler.params", get);
  add_warmup_keys(params);
  add_range_test_keys(params);
  add_cycle_keys(params);
  params.honour("last_batch_iteration", &Scheduler::last_batch_iteration,
                "number of steps already done, minus 1", {.range = {.least = -1}});
}

void add_precision_keys(std::vector<Key>& keys) {
  using Fp16 = C::Fp16;
  Section<Fp16>(
      keys, "fp16", [](auto& c) -> auto& { return c.fp16; })
      .honour("enabled", &Fp16::enabled, "the model computes in fp16, with fp32 master weights")
      .honour("auto_cast", &Fp16::auto_cast, "cast inputs to fp16")
      .honour("loss_scale", &Fp16::loss_scale, "0: dynamic", {.range = {.least = 0}})
      .honour("initial_scale_power", &Fp16::initial_scale_power,
              "the first dynamic scale is 2 to the power of this", {.range = {.least = 0, .most = 127}})
      .honour("loss_scale_window", &Fp16::loss_scale_window,
              "steps without overflow before the scale doubles", {.range = {.least = 0}})
      .honour("hysteresis", &Fp16::hysteresis, "overflows before the scale halves", {.range = {.least = 1}})
      .honour("consecutive_hysteresis", &Fp16::consecutive_hysteresis,
              "a step without overflow resets the hysteresis")
      .honour("min_loss_scale", &Fp16::min_loss_scale, "an overflow at this scale ends the training",
              {.range = {.least = 0}})
      .fix("fp16_master_weights_and_grads", {"false"}, "master weights are fp32");

  Section<C::Bf16>(
      keys, "bf16", [](auto& c) -> auto& { return c.bf16; })
      .honour("enabled", &C::Bf16::enabled, "the model computes in bf16, with fp32 master weights")
      .honour("check_grad_overflow", &C::Bf16::check_grad_overflow,
              "skip a step with inf or nan in its gradients")
      .fix("immediate_grad_update", {"false"},
           "gradients are computed in their bucket, so there is no later copy")
      .fix("bf16_master_weights_and_grads", {"false"}, "master weights are fp32")
      .fix("bf16_optimizer_states", {"false"}, "moments are fp32");

  Section<C::TorchAutocast>(
      keys, "torch_autocast", [](auto& c) -> auto& { return c.torch_autocast; })
      .honour("enabled", &C::TorchAutocast::enabled, "forward under LibTorch's autocast, weights stay fp32")
      .honour("dtype", &C::TorchAutocast::dtype, "fp16 or bf16; null: fp16 on a GPU, bf16 on a CPU")
      .fix("lower_precision_safe_modules", {"null", "[]"}, "autocast decides by operation");

  Section<C::DataTypes>(
      keys, "data_types", [](auto& c) -> auto& { return c.data_types; })
      .honour("grad_accum_dtype", &C::DataTypes::grad_accum_dtype,
              "must be the model's dtype, in which gradients are summed")
      .fix("param_dtype", {"null"}, "fp16 and bf16 set the model's dtype")
      .fix("buffer_dtype", {"null"}, "buffers have the model's dtype")
      .fix("keep_in_fp32_modules", {"\"auto\"", "[]"}, "every module has the model's dtype");
}

using Zero = C::Zero;

void add_offload_keys(std::vector<Key>& keys) {
  using Offload = C::OffloadOptimizer;
  Section<Offload>(
      keys, "zero_optimization.offload_optimizer", [](auto& c) -> auto& { return c.zero.offload_optimizer; })
      .honour("device", &Offload::device,
              "where the optimizer state is stored: none, cpu, or with stage 3 nvme")
      .honour("nvme_path", &Offload::nvme_path, "folder for device nvme")
      .honour("pin_memory", &Offload::pin_memory, "page-locked memory")
      .honour("buffer_count", &Offload::buffer_count, "buffers for device nvme", {.range = {.least = 1}})
      .honour("pipeline_read", &Offload::pipeline_read,
              "read the next tile while the current one is computed")
      .honour("pipeline_write", &Offload::pipeline_write, "write a tile while the next one is computed")
      .fix("fast_init", {"false", "true"}, "files of device nvme are never filled with zeros, either way")
      .honour("ratio", &Offload::ratio, "fraction of the state that is offloaded; less than 1 is refused",
              {.range = {.least = 0, .most = 1}})
      .fix("super_offload", {"false"}, "it supports one kind of machine only")
      .fix("cpuadam_cores_perc", {"0.8"}, "only super_offload reads it");

  using OffloadParam = C::OffloadParam;
  const char* nvme_only = "only nvme reads it, and parameters are offloaded to CPU memory only";
  Section<OffloadParam>(
      keys, "zero_optimization.offload_param", [](auto& c) -> auto& { return c.zero.offload_param; })
      .honour("device", &OffloadParam::device,
              "where parameters are stored with stage 3: none or cpu; cpu needs offload_optimizer")
      .honour("pin_memory", &OffloadParam::pin_memory, "page-locked memory")
      .fix("nvme_path", {"null"}, nvme_only)
      .fix("buffer_count", {"5"}, nvme_only)
      .fix("buffer_size", {"100000000"}, nvme_only)
      .fix("max_in_cpu", {"1000000000"}, nvme_only);

  using Aio = C::Aio;
  Section<Aio>(
      keys, "aio", [](auto& c) -> auto& { return c.aio; })
      .honour("block_size", &Aio::block_size, "bytes of one transfer", {.range = {.least = 4096}})
      .honour("queue_depth", &Aio::queue_depth, "transfers in flight", {.range = {.least = 1, .most = 32768}})
      .honour("intra_op_parallelism", &Aio::intra_op_parallelism, "threads; with device nvme only 1",
              {.range = {.least = 1, .most = 1024}, .aliases = {"thread_count"}})
      .fix("single_submit", {"false"}, "io_uring submits what is ready at once")
      .fix("overlap_events", {"true"}, "io_uring overlaps submission and completion")
      .fix("use_gds", {"false"}, "GPUDirect Storage is not used");
}

void add_old_names(Section<Zero>& zero) {
  const auto cpu_if = [](const config::HjsonNode& node) {
    return read_value<std::optional<bool>>(node, {}).value_or(false) ? C::OffloadDevice::kCpu
                                                                     : C::OffloadDevice::kNone;
  };
  zero.rename(
          "cpu_offload", "old name: true is offload_optimizer.device cpu",
          [cpu_if](C& c, const config::HjsonNode& node) { c.zero.offload_optimizer.device = cpu_if(node); })
      .rename("cpu_offload_param", "old name: true is offload_param.device cpu",
              [cpu_if](C& c, const config::HjsonNode& node) { c.zero.offload_param.device = cpu_if(node); })
      .fix("cpu_offload_use_pin_memory", {"null"},
           "it is pin_memory in offload_optimizer or offload_param now");
}

void add_fixed_keys(Section<Zero>& zero) {
  const char* quantised = "quantised communication changes the results";
  const char* mics = "parameters are sharded over all ranks, not over groups of ranks";
  const char* explicit_units = "the program chooses the modules that are units of stage 3";
  zero.fix("contiguous_gradients", {"true"}, "gradients are computed in one flat buffer")
      .fix("reduce_scatter", {"true"}, "gradients go only to the rank that owns their shard")
      .fix("allgather_partitions", {"true"}, "shards are gathered, not broadcast one by one")
      .fix("use_multi_rank_bucket_allreduce", {"true"}, "a bucket is reduced for all ranks at once")
      .fix("round_robin_gradients", {"false"}, "every rank owns a shard of every bucket already")
      .fix("compute_grad_norm", {"true"}, "the norm costs one number per rank and is always computed")
      .fix("load_from_fp32_weights", {"true"}, "the fp32 weights of a checkpoint are loaded")
      .fix("elastic_checkpoint", {"false", "true"}, "every checkpoint loads on any world size")
      .fix("legacy_stage1", {"false"}, "there is one stage 1")
      .fix("parameter_alignment", {"false"}, "the flat buffers determine the alignment")
      .fix("stage3_module_granularity_threshold", {"0"}, explicit_units,
           {.aliases = {"module_granularity_threshold"}})
      .fix("stage3_use_all_reduce_for_fetch_params", {"false"}, "parameters are all-gathered",
           {.aliases = {"use_all_reduce_for_fetch_params"}})
      .fix("stage3_allgather_sequential", {"false"},
           "a unit's parameters are one flat buffer, gathered at once", {.aliases = {"allgather_sequential"}})
      .fix("memory_efficient_linear", {"true"}, "backward gathers the weights of a unit again")
      .refuse("leaf_module", {}, explicit_units)
      .fix("override_module_apply", {"true"}, "it concerns Python modules")
      .fix("pipeline_loading_checkpoint", {"false"}, "each rank reads only its ranges of a checkpoint")
      .fix("log_trace_cache_warnings", {"false"},
           "the order of units is fixed, there is no trace to warn about")
      .fix("enable_sanity_checks", {"false"}, "checks are always on")
      .fix("save_muon_momentum_buffer_in_memory", {"false"}, "there is no Muon")
      .fix("zero_hpz_partition_size", {"1"}, mics)
      .fix("zero_quantized_weights", {"false"}, quantised)
      .fix("zero_quantized_nontrainable_weights", {"false"}, quantised)
      .fix("zero_quantized_gradients", {"false"}, quantised)
      .refuse("zeropp_loco_param", {}, quantised)
      .fix("mics_shard_size", {"-1"}, mics)
      .fix("mics_hierarchical_params_gather", {"false"}, mics)
      .refuse("zenflow", {}, "it applies part of the gradients late, which changes the results");
}

void add_zero_keys(std::vector<Key>& keys) {
  Section<Zero> zero(
      keys, "zero_optimization", [](auto& c) -> auto& { return c.zero; });
  zero.honour("stage", &Zero::stage, "shards: 1 optimizer state, 2 also gradients, 3 also parameters; 0 none",
              {.range = {.least = 0, .most = 3}})
      .honour("reduce_bucket_size", &Zero::reduce_bucket_size,
              "elements reduced at once; at the default value, buckets have 25 MiB", {.range = {.least = 1}})
      .honour("allgather_bucket_size", &Zero::allgather_bucket_size,
              "elements gathered at once; at the default value, buckets have 25 MiB", {.range = kNotNegative})
      .honour("overlap_comm", &Zero::overlap_comm,
              "reduce during backward; null: true; true: also gather the updates of units during the next "
              "forward")
      .honour("ignore_unused_parameters", &Zero::ignore_unused_parameters,
              "false: a parameter without gradient is an error that names it; the default is false at "
              "stage 3, true else")
      .honour(
          "sub_group_size", &Zero::sub_group_size,
          "elements of one tile of the optimizer step at stage 3; at the default value, tiles have 25 MiB",
          {.range = {.least = 1}})
      .honour("stage3_prefetch_bucket_size", &Zero::prefetch_bucket_size,
              "the next unit is gathered ahead if it has at most this many elements; 0: never",
              {.range = kNotNegative, .aliases = {"prefetch_bucket_size"}})
      .honour("stage3_param_persistence_threshold", &Zero::param_persistence_threshold,
              "smaller parameters are replicated, not sharded",
              {.range = kNotNegative, .aliases = {"param_persistence_threshold"}})
      .honour("stage3_model_persistence_threshold", &Zero::model_persistence_threshold,
              "the largest number of replicated elements",
              {.range = kNotNegative, .aliases = {"model_persistence_threshold"}})
      .honour("stage3_max_live_parameters", &Zero::max_live_parameters,
              "only the default is accepted: a unit and the next one are gathered at a time",
              {.range = kNotNegative, .aliases = {"max_live_parameters"}})
      .honour("stage3_max_reuse_distance", &Zero::max_reuse_distance,
              "only the default is accepted: a unit is freed after its forward",
              {.range = kNotNegative, .aliases = {"max_reuse_distance"}})
      .honour(
          "stage3_gather_16bit_weights_on_model_save", &Zero::gather_16bit_weights_on_model_save,
          "save_16bit_model gathers the weights",
          {.aliases = {"gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"}});
  add_fixed_keys(zero);
  add_old_names(zero);
  add_offload_keys(keys);
}

void add_output_keys(std::vector<Key>& keys) {
  Section<C>(
      keys, "", [](auto& c) -> auto& { return c; })
      .honour("steps_per_print", &C::steps_per_print, "steps between progress lines; null or 0: none",
              {.range = {.least = 0}})
      .honour("wall_clock_breakdown", &C::wall_clock_breakdown,
              "times of forward, backward, all-reduce and step, with each progress line or after each step")
      .honour("memory_breakdown", &C::memory_breakdown, "memory together with the times")
      .honour("dump_state", &C::dump_state, "print the engine's state at the start")
      .honour("log_level", &C::log_level, "debug, info, warning or error; null: LOCKSTEP_LOG_LEVEL");

  Section<C::ThroughputTimer>(
      keys, "timers.throughput", [](auto& c) -> auto& { return c.throughput_timer; })
      .honour("enabled", &C::ThroughputTimer::enabled, "samples per second in the progress line")
      .honour("synchronized", &C::ThroughputTimer::synchronized,
              "wait for the device before reading the clock");

  Section<C::Monitor>(
      keys, "tensorboard", [](auto& c) -> auto& { return c.tensorboard; })
      .honour("enabled", &C::Monitor::enabled, "write TensorBoard events")
      .honour("output_path", &C::Monitor::output_path, "folder; empty: the working directory")
      .honour("job_name", &C::Monitor::job_name, "subfolder");

  Section<C::Monitor>(
      keys, "csv_monitor", [](auto& c) -> auto& { return c.csv_monitor; })
      .honour("enabled", &C::Monitor::enabled, "write metrics.csv, one row per step")
      .honour("output_path", &C::Monitor::output_path, "folder; empty: the working directory")
      .honour("job_name", &C::Monitor::job_name, "subfolder");

  using Profiler = C::FlopsProfiler;
  Section<Profiler>(
      keys, "flops_profiler", [](auto& c) -> auto& { return c.flops_profiler; })
      .honour("enabled", &Profiler::enabled, "measure the cost of the forward passes of one step")
      .honour("profile_step", &Profiler::profile_step, "the step, counted from 0; step 0 is warm-up",
              {.range = {.least = 1}})
      .honour("module_depth", &Profiler::module_depth,
              "the deepest level of the list of costly modules; -1: all", {.range = {.least = -1}})
      .honour("top_modules", &Profiler::top_modules, "number of modules per level in that list",
              {.range = {.least = 1}})
      .honour("detailed", &Profiler::detailed, "print the tree of modules")
      .honour("output_file", &Profiler::output_file, "file; null: standard output")
      .honour("recompute_fwd_factor", &Profiler::recompute_fwd_factor,
              "forward passes that activation checkpointing repeats", {.range = {.least = 0, .most = 1}});

  using Logger = C::CommsLogger;
  Section<Logger>(
      keys, "comms_logger", [](auto& c) -> auto& { return c.comms_logger; })
      .honour("enabled", &Logger::enabled,
              "measure each collective; they then overlap neither each other nor computation")
      .honour("verbose", &Logger::verbose, "one line per call, on rank 0")
      .honour("prof_all", &Logger::prof_all, "all operations; false: those of prof_ops")
      .honour("debug", &Logger::debug, "list calls of forward, backward and step separately")
      .honour("prof_ops", &Logger::prof_ops, "operations that are measured");
}

void add_refused_keys(std::vector<Key>& keys) {
  Section<C>(
      keys, "", [](auto& c) -> auto& { return c; })
      .refuse("wandb", {"enabled"},
              "Weights & Biases has no C++ client: use tensorboard, csv_monitor or MLflow")
      .refuse("comet", {"enabled"}, "Comet has no C++ client: use tensorboard, csv_monitor or MLflow")
      .refuse("amp", {"enabled"}, "Apex is a Python library: use fp16, bf16 or torch_autocast")
      .refuse("autotuning", {"enabled"}, "there is no search over settings")
      .refuse("compression_training", {}, "models are not quantised or pruned")
      .refuse("quantize_training", {"enabled"}, "models are not quantised")
      .refuse("weight_quantization", {}, "models are not quantised")
      .refuse("progressive_layer_drop", {"enabled"}, "every layer takes part in every step")
      .refuse("eigenvalue", {"enabled"}, "only quantisation uses it")
      .refuse("curriculum_learning", {"enabled"}, "samples are drawn at random, not by difficulty")
      .refuse("data_efficiency", {"enabled"}, "samples are drawn at random, and no token is dropped")
      .refuse("elasticity", {"enabled"}, "set the batch keys; a job can resume on another number of ranks")
      .refuse("sparse_attention", {}, "the model defines its attention")
      .refuse("tensor_parallel", {"autotp_size", "enabled"}, "layers are not split over ranks")
      .refuse("expert_parallel", {"enabled"}, "experts are not distributed over ranks")
      .refuse("pipeline", {}, "layers are not distributed over ranks")
      .refuse("hybrid_engine", {"enabled"}, "there is no inference engine")
      .refuse("compile", {"enabled", "deepcompile"}, "LibTorch compiles no graphs")
      .refuse("nebula", {"enabled"}, "it is a service of Azure; checkpoints are asynchronous already")
      .refuse("datastates_ckpt", {}, "checkpoints are asynchronous already");
}

template <typename Type>
std::vector<std::string> names_in(uint32_t types) {
  std::vector<std::string> names;
  for (const auto& [name, type] : names_of(Type{})) {
    if ((types & type_bit(type)) != 0) names.emplace_back(name);
  }
  return names;
}

}  // namespace

const std::vector<Key>& all_keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> made;
    add_training_keys(made);
    add_optimizer_keys(made);
    add_scheduler_keys(made);
    add_precision_keys(made);
    add_zero_keys(made);
    add_output_keys(made);
    add_refused_keys(made);
    return made;
  }();
  return keys;
}

std::vector<std::string> type_names(const Key& key) {
  if (key.section() == "optimizer.params") return names_in<C::Optimizer::Type>(key.types);
  if (key.section() == "scheduler.params") return names_in<C::Scheduler::Type>(key.types);
  return {};
}

void set_type_defaults(Optimizer& optimizer) {
  if (optimizer.type == OptimizerType::kAdagrad) {
    optimizer.lr = 1e-2;
    optimizer.eps = 1e-10;
  } else if (optimizer.type == OptimizerType::kRmsprop) {
    optimizer.lr = 1e-2;
  } else if (optimizer.type == OptimizerType::kLbfgs) {
    optimizer.lr = 1;
  }
}

void set_type_defaults(Scheduler& scheduler) {
  if (scheduler.type == SchedulerType::kWarmupDecayLr) scheduler.warmup_max_lr = 1e-3;
}

std::string refused_optimizer(const std::string& name) {
  static const char* const kOneBit = "it compresses gradients to bits, which changes the results";
  static const char* const kMup = "it needs widths that the Python package mup stores in the model";
  static const char* const kNotInLibTorch = "LibTorch has no such optimizer";
  static const std::map<std::string, const char*> reasons = {
      {"onebitadam", kOneBit},
      {"zerooneadam", kOneBit},
      {"onebitlamb", kOneBit},
      {"muadam", kMup},
      {"muadamw", kMup},
      {"musgd", kMup},
      {"muon", "it orthogonalises whole matrices, which a flat shard does not hold"},
      {"adadelta", kNotInLibTorch},
      {"adafactor", kNotInLibTorch},
      {"adamax", kNotInLibTorch},
      {"asgd", kNotInLibTorch},
      {"nadam", kNotInLibTorch},
      {"radam", kNotInLibTorch},
      {"rprop", kNotInLibTorch},
      {"sparseadam", kNotInLibTorch}};
  std::string small = name;
  for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto found = reasons.find(small);
  return found == reasons.end() ? "" : found->second;
}

}  // namespace lockstep::deepspeed
