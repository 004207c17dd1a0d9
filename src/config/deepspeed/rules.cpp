// The rules between keys: which values contradict each other, and the batch sizes.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/deepspeed_config.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/nearest_name.h"
#include "config/deepspeed/failure.h"
#include "config/deepspeed/value.h"
#include "config/zero_options.h"

namespace lockstep {
namespace {

using C = DeepSpeedConfig;
using deepspeed::fail_at;
using OptimizerType = C::Optimizer::Type;

std::string name_of(OptimizerType type) { return deepspeed::write_value(type).get<std::string>(); }

void check_precision(const C& c) {
  if (c.fp16.enabled && c.bf16.enabled) {
    fail_at(c, "bf16.enabled",
            "fp16 and bf16 are both enabled: a model has one dtype, disable one of the two");
  }
  if (c.fp16.enabled && c.fp16.has_dynamic_scale()) {
    for (const auto& [name, value] : {std::pair("loss_scale_window", c.fp16.loss_scale_window),
                                      {"min_loss_scale", c.fp16.min_loss_scale}}) {
      if (value >= 1) continue;
      fail_at(c, fmt::format("fp16.{}", name),
              fmt::format("fp16.{} must be at least 1 where the loss scale is dynamic: {}", name, value));
    }
  }
  if (c.torch_autocast.enabled && c.dtype() != C::Dtype::kFp32) {
    fail_at(c, "torch_autocast.enabled",
            fmt::format("torch_autocast is for a model in fp32, and {} is enabled: disable one of the two",
                        c.fp16.enabled ? "fp16" : "bf16"));
  }
  if (c.torch_autocast.dtype == C::Dtype::kFp32) {
    fail_at(c, "torch_autocast.dtype", "torch_autocast.dtype must be one of fp16, bf16: fp32 casts nothing");
  }
  const std::optional<C::Dtype>& sum = c.data_types.grad_accum_dtype;
  if (sum && *sum != C::Dtype::kFp32 && *sum != c.dtype()) {
    fail_at(c, "data_types.grad_accum_dtype",
            fmt::format("data_types.grad_accum_dtype must be fp32 or the model's dtype, which is {}: {}",
                        deepspeed::write_value(c.dtype()).get<std::string>(),
                        deepspeed::write_value(*sum).get<std::string>()));
  }
}

// Combinations in which one key would have no effect.
void check_gradient_scale(const C& c) {
  const bool has_factor = c.gradient_predivide_factor != 1;
  if (c.prescale_gradients && has_factor) {
    fail_at(c, "gradient_predivide_factor",
            "prescale_gradients divides by everything before the sum, which leaves nothing for "
            "gradient_predivide_factor: set one of the two");
  }
  if (c.gradient_allreduce_op == C::GradientOp::kSum && (c.prescale_gradients || has_factor)) {
    fail_at(c, "gradient_allreduce_op",
            fmt::format("gradient_allreduce_op sum divides nothing, and {} is set: use mean, or remove it",
                        has_factor ? "gradient_predivide_factor" : "prescale_gradients"));
  }
}

void check_optimizer(const C& c) {
  const C::Optimizer& o = c.optimizer;
  const bool is_adam = o.type == OptimizerType::kAdam || o.type == OptimizerType::kAdamW;
  if (o.lr > static_cast<double>(std::numeric_limits<float>::max())) {
    fail_at(c, "optimizer.params.lr",
            fmt::format("the learning rate is more than a float32 can hold: {:g}", o.lr));
  }
  if (o.type == OptimizerType::kAdamW && !o.adam_w_mode) {
    fail_at(c, "optimizer.params.adam_w_mode",
            "adam_w_mode false contradicts the type AdamW: use the type Adam");
  }
  if (is_adam && o.amsgrad && !o.torch_adam) {
    fail_at(c, "optimizer.params.amsgrad", "amsgrad needs torch_adam: set torch_adam to true");
  }
  if (is_adam && o.torch_adam && !o.bias_correction) {
    fail_at(c, "optimizer.params.bias_correction",
            "torch_adam always corrects the bias: set torch_adam to false");
  }
  if (o.type == OptimizerType::kSgd && o.nesterov && o.momentum <= 0) {
    fail_at(c, "optimizer.params.nesterov",
            fmt::format("nesterov needs momentum above 0: set momentum, which is {}", o.momentum));
  }
  if (o.type == OptimizerType::kSgd && o.nesterov && o.dampening != 0) {
    fail_at(c, "optimizer.params.nesterov",
            fmt::format("nesterov needs dampening 0: remove dampening, which is {}", o.dampening));
  }
  if (o.type == OptimizerType::kLamb && o.min_coeff > o.max_coeff) {
    fail_at(c, "optimizer.params.min_coeff",
            fmt::format("min_coeff is above max_coeff, {} and {}: lower it", o.min_coeff, o.max_coeff));
  }
}

void check_sharded_optimizer(const C& c) {
  const OptimizerType type = c.optimizer.type;
  if (c.zero.stage == 0 || !c.optimizer.exists()) return;
  if (type == OptimizerType::kLbfgs || type == OptimizerType::kLamb) {
    fail_at(c, "optimizer.type",
            fmt::format(
                "{} cannot be sharded, and the ZeRO stage is {}: {}; use stage 0, or an optimizer that works "
                "element by element",
                name_of(type), c.zero.stage,
                type == OptimizerType::kLamb ? "its trust ratio needs the norms of whole parameters"
                                             : "its history is of all parameters at once"));
  }
  const bool is_known = type == OptimizerType::kAdam || type == OptimizerType::kAdamW ||
                        type == OptimizerType::kAdagrad || type == OptimizerType::kLion;
  if (!is_known && !c.zero_allow_untested_optimizer) {
    fail_at(
        c, "zero_allow_untested_optimizer",
        fmt::format(
            "zero_allow_untested_optimizer is false, and DeepSpeed does not know {} under ZeRO: set it to "
            "true, which is the default here",
            name_of(type)));
  }
  if (!is_known && c.zero_force_ds_cpu_optimizer &&
      c.zero.offload_optimizer.device != C::OffloadDevice::kNone) {
    fail_at(
        c, "zero_optimization.offload_optimizer.device",
        fmt::format(
            "{} has no kernel for the CPU, and the optimizer is offloaded: use Adam, AdamW, Adagrad or Lion, "
            "or set zero_force_ds_cpu_optimizer to false",
            name_of(type)));
  }
}

void check_needed(const C& c, const char* type, std::initializer_list<const char*> names) {
  if (c.places.empty()) return;
  for (const char* name : names) {
    const std::string key = fmt::format("scheduler.params.{}", name);
    if (c.places.count(key) > 0) continue;
    fail_at(c, key, fmt::format("{} needs {}, and \"auto\" cannot determine it: set a number", type, name));
  }
}

void check_scheduler(const C& c) {
  using Scheduler = C::Scheduler::Type;
  const C::Scheduler& s = c.scheduler;
  if (s.type == Scheduler::kWarmupDecayLr || s.type == Scheduler::kWarmupCosineLr) {
    const char* name = s.type == Scheduler::kWarmupDecayLr ? "WarmupDecayLR" : "WarmupCosineLR";
    check_needed(c, name, {"total_num_steps"});
    if (s.total_num_steps < s.warmup_num_steps) {
      fail_at(c, "scheduler.params.total_num_steps",
              fmt::format("total_num_steps is less than warmup_num_steps, {} and {}: raise it",
                          s.total_num_steps, s.warmup_num_steps));
    }
  }
  if (s.type == Scheduler::kOneCycle) {
    check_needed(c, "OneCycle", {"cycle_min_lr", "cycle_max_lr"});
    if (s.cycle_min_lr > s.cycle_max_lr) {
      fail_at(c, "scheduler.params.cycle_min_lr",
              fmt::format("cycle_min_lr is above cycle_max_lr, {} and {}: lower it", s.cycle_min_lr,
                          s.cycle_max_lr));
    }
    if (s.cycle_min_mom > s.cycle_max_mom) {
      fail_at(c, "scheduler.params.cycle_min_mom",
              fmt::format("cycle_min_mom is above cycle_max_mom, {} and {}: lower it", s.cycle_min_mom,
                          s.cycle_max_mom));
    }
  }
}

// Bytes of a bucket by the file's sizes in elements, the smallest of them; `otherwise` where they are
// DeepSpeed's defaults.
int64_t bucket_bytes(const C& c, int64_t otherwise) {
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  const C::Zero defaults;
  int64_t elements = kUnlimited;
  const auto limit = [&](int64_t wanted, int64_t usual) {
    if (wanted != usual) elements = std::min(elements, std::max<int64_t>(1, wanted));
  };
  limit(c.zero.reduce_bucket_size, defaults.reduce_bucket_size);
  limit(c.zero.allgather_bucket_size, defaults.allgather_bucket_size);
  if (c.zero.stage == 3) limit(c.zero.sub_group_size, defaults.sub_group_size);
  if (elements == kUnlimited) return otherwise;
  const int64_t width = c.dtype() == C::Dtype::kFp32 ? 4 : 2;
  return elements > kUnlimited / width ? kUnlimited : elements * width;
}

// The key of an option of ZeRO, without its section where that is zero_optimization.
std::string zero_key(std::string_view option) {
  if (option == "bucket_cap_bytes") return "reduce_bucket_size";
  if (option == "persistence_threshold") return "stage3_param_persistence_threshold";
  return std::string(option);
}

void check_zero(const C& c) {
  if (c.gradient_allreduce_op == C::GradientOp::kSum && c.zero.stage == 3) {
    fail_at(c, "gradient_allreduce_op",
            "gradient_allreduce_op sum is for stages 0 to 2, and the stage is 3: use mean");
  }
  if (const auto violation = config::find_violation(c.zero_options(), zero_key);
      violation && !violation->is_ours) {
    const std::string key = zero_key(violation->option);
    fail_at(c, key.starts_with("aio.") ? key : "zero_optimization." + key, violation->sentence);
  }
  const double ratio = c.zero.offload_optimizer.ratio;
  if (ratio < 1 && c.zero.stage != 3) {
    fail_at(c, "zero_optimization.offload_optimizer.ratio",
            fmt::format("offload_optimizer.ratio {} needs stage 3, and the stage is {}: set it to 1", ratio,
                        c.zero.stage));
  }
}

// Without this check, a misspelt name would silently measure nothing.
void check_comms_logger(const C& c) {
  for (const std::string& name : c.comms_logger.prof_ops) {
    if (deepspeed::operation_of(name)) continue;
    const auto nearest = base::nearest_name(name, deepspeed::operation_names());
    fail_at(
        c, "comms_logger.prof_ops",
        fmt::format("comms_logger.prof_ops names an unknown collective: '{}'{}", name,
                    nearest ? fmt::format("; did you mean '{}'?", *nearest)
                            : fmt::format("; known are {}", fmt::join(deepspeed::operation_names(), ", "))));
  }
  if (c.comms_logger.enabled && !c.comms_logger.prof_all && c.comms_logger.prof_ops.empty()) {
    fail_at(c, "comms_logger.prof_all",
            "comms_logger is enabled, prof_all is false and prof_ops is empty, so nothing is measured: "
            "name operations, or remove prof_all");
  }
}

// An old name and the section that replaced it must not both be set.
void check_old_names(const C& c) {
  for (const auto& [old, section] :
       {std::pair("cpu_offload", "offload_optimizer"), {"cpu_offload_param", "offload_param"}}) {
    const std::string path = fmt::format("zero_optimization.{}", old);
    const std::string other = fmt::format("zero_optimization.{}", section);
    if (c.places.count(path) == 0 || c.places.count(other) == 0) continue;
    fail_at(c, path,
            fmt::format("{} is the old name of {}, which is at {}: keep the new one", old, section,
                        deepspeed::place_of(c, other)));
  }
}

using BatchTriple = DeepSpeedConfig::BatchTriple;

constexpr const char* kTotal = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kSteps = "gradient_accumulation_steps";

// "8", or "no whole number (30 / 4 = 7.5)".
std::string quotient(int64_t a, int64_t b) {
  if (a % b == 0 && a >= b) return std::to_string(a / b);
  return fmt::format("no whole number ({} / {} = {:.4g})", a, b,
                     static_cast<double>(a) / static_cast<double>(b));
}

// Computes the missing parts of
// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks.
class BatchSizes {
 public:
  BatchSizes(const DeepSpeedConfig& config, int64_t world_size) : config_(config), world_(world_size) {}

  BatchTriple check_all(int64_t total, int64_t micro, int64_t steps) const {
    const int64_t product = times(times(micro, steps), world_);
    if (total == product) return {total, micro, steps};
    fail(kTotal,
         fmt::format("{} {} is not {} {} x {} {} x {} ranks = {}: set {} to {}, or {} to {}, or {} to {}",
                     kTotal, total, kMicro, micro, kSteps, steps, world_, product, kTotal, product, kMicro,
                     quotient(total, times(steps, world_)), kSteps, quotient(total, times(micro, world_))));
  }

  // Computes the micro batch.
  BatchTriple divide_by_steps(int64_t total, int64_t steps) const {
    const int64_t parts = times(steps, world_);
    if (total < parts) fail_too_small(total, steps, parts);
    if (total % parts != 0) {
      fail(kTotal,
           fmt::format(
               "{} {} cannot be split over {}: {} / {} = {:.4g}: set {} to {} or {}, or give {} instead "
               "(the batch of one rank), or run on a number of ranks that divides it",
               kTotal, total, parts_text(steps), total, parts,
               static_cast<double>(total) / static_cast<double>(parts), kTotal, total / parts * parts,
               (total / parts + 1) * parts, kMicro));
    }
    return {total, total / parts, steps};
  }

  // Computes the accumulation steps.
  BatchTriple divide_by_micro(int64_t total, int64_t micro) const {
    const int64_t once = times(micro, world_);
    if (total < once || total % once != 0) {
      const int64_t lower = std::max<int64_t>(1, total / once) * once;
      fail(kTotal,
           fmt::format(
               "{} {} is no multiple of {} {} x {} ranks = {}: set {} to {}, or {} to {}, or leave one "
               "of the two out",
               kTotal, total, kMicro, micro, world_, once, kTotal, lower, kMicro, quotient(total, world_)));
    }
    return {total, micro, total / once};
  }

  BatchTriple multiply(int64_t micro, int64_t steps) const {
    return {times(times(micro, steps), world_), micro, steps};
  }

  [[noreturn]] void fail_missing() const {
    const bool has_steps = config_.gradient_accumulation_steps.has_value();
    fail(kSteps,
         fmt::format("the configuration has no batch size{}: set {} (all ranks together) or {} (one rank)",
                     has_steps ? fmt::format(", and {} alone is none", kSteps) : "", kTotal, kMicro));
  }

 private:
  std::string parts_text(int64_t steps) const {
    return steps == 1 ? fmt::format("{} ranks", world_)
                      : fmt::format("{} ranks x {} {}", world_, steps, kSteps);
  }

  [[noreturn]] void fail_too_small(int64_t total, int64_t steps, int64_t parts) const {
    fail(kTotal,
         fmt::format(
             "{} {} is the batch of all ranks together, which is less than one sample for each of {}: set {} "
             "to a multiple of {}, or give {} instead (the batch of one rank), or run on at most {} ranks",
             kTotal, total, parts_text(steps), kTotal, parts, kMicro, std::max<int64_t>(1, total / steps)));
  }

  int64_t times(int64_t a, int64_t b) const {
    int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) {
      fail(kTotal, fmt::format("the batch is too large to count: {} x {}", a, b));
    }
    return product;
  }

  [[noreturn]] void fail(const char* key, const std::string& sentence) const {
    deepspeed::fail_at(config_, key, sentence);
  }

  const DeepSpeedConfig& config_;
  int64_t world_;
};

}  // namespace

ZeroOptions DeepSpeedConfig::zero_options() const {
  ZeroOptions options;
  options.stage = static_cast<int>(zero.stage);
  options.bucket_cap_bytes = bucket_bytes(*this, options.bucket_cap_bytes);
  options.persistence_threshold = zero.param_persistence_threshold;
  options.persistence_limit = zero.model_persistence_threshold;
  options.prefetch = zero.prefetch_bucket_size > 0;
  options.prefetch_limit = zero.prefetch_bucket_size;
  options.overlap = zero.overlap_comm.value_or(true);
  options.overlap_gather = zero.overlap_comm.value_or(false);
  options.offload_optimizer = {.device = zero.offload_optimizer.device,
                               .nvme_path = zero.offload_optimizer.nvme_path.value_or(""),
                               .pin_memory = zero.offload_optimizer.pin_memory,
                               .buffer_count = zero.offload_optimizer.buffer_count,
                               .pipeline_read = zero.offload_optimizer.pipeline_read,
                               .pipeline_write = zero.offload_optimizer.pipeline_write};
  options.offload_param = zero.offload_param;
  if (zero.offload_optimizer.device == OffloadDevice::kNvme) {
    options.aio = {.block_size = aio.block_size, .queue_depth = aio.queue_depth};
  }
  return options;
}

void DeepSpeedConfig::validate() const {
  check_gradient_scale(*this);
  check_precision(*this);
  check_optimizer(*this);
  check_sharded_optimizer(*this);
  check_scheduler(*this);
  check_zero(*this);
  check_comms_logger(*this);
  check_old_names(*this);
}

BatchTriple DeepSpeedConfig::resolve_batch(int64_t world_size,
                                           std::optional<int64_t> loader_batch_size) const {
  base::check(world_size >= 1, "the world size must be at least 1");
  const BatchSizes sizes(*this, world_size);
  const std::optional<int64_t>& total = train_batch_size;
  const std::optional<int64_t>& steps = gradient_accumulation_steps;
  std::optional<int64_t> micro = train_micro_batch_size_per_gpu;
  if (!total && !micro) micro = loader_batch_size;
  if (total && micro)
    return steps ? sizes.check_all(*total, *micro, *steps) : sizes.divide_by_micro(*total, *micro);
  if (total) return sizes.divide_by_steps(*total, steps.value_or(1));
  if (micro) return sizes.multiply(*micro, steps.value_or(1));
  sizes.fail_missing();
}

}  // namespace lockstep
