// Values that do not go together.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/deepspeed_config.h>

#include <limits>

#include "base/nearest_name.h"
#include "deepspeed/comms_names.h"
#include "deepspeed/failure.h"
#include "deepspeed/value.h"

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

// Keys of which one makes the other do nothing.
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
    fail_at(c, key, fmt::format("{} needs {}, and \"auto\" does not tell it: give a number", type, name));
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

void check_zero(const C& c) {
  const C::Zero& zero = c.zero;
  const std::string section = "zero_optimization.";
  if (c.gradient_allreduce_op == C::GradientOp::kSum && zero.stage == 3) {
    fail_at(c, "gradient_allreduce_op",
            "gradient_allreduce_op sum is for stages 0 to 2, and the stage is 3: use mean");
  }
  const C::OffloadOptimizer& optimizer = zero.offload_optimizer;
  if (optimizer.device != C::OffloadDevice::kNone && zero.stage == 0) {
    fail_at(c, section + "offload_optimizer.device",
            "offload_optimizer needs a ZeRO stage, and the stage is 0: set it to 1, 2 or 3");
  }
  if (optimizer.device == C::OffloadDevice::kNvme && zero.stage != 3) {
    fail_at(c, section + "offload_optimizer.device",
            fmt::format("offload_optimizer to nvme needs stage 3, and the stage is {}: offload to cpu",
                        zero.stage));
  }
  if (optimizer.device == C::OffloadDevice::kNvme && optimizer.nvme_path.value_or("").empty()) {
    fail_at(c, section + "offload_optimizer.nvme_path",
            "offload_optimizer to nvme needs nvme_path, the folder for its files: set it");
  }
  if (optimizer.ratio < 1 && zero.stage != 3) {
    fail_at(c, section + "offload_optimizer.ratio",
            fmt::format("offload_optimizer.ratio {} needs stage 3, and the stage is {}: set it to 1",
                        optimizer.ratio, zero.stage));
  }
  if (zero.offload_param.device == C::OffloadDevice::kNvme) {
    fail_at(c, section + "offload_param.device",
            "offload_param to nvme is not supported: parameters are offloaded to CPU memory only, use cpu");
  }
  if (zero.offload_param.device != C::OffloadDevice::kNone && zero.stage != 3) {
    fail_at(
        c, section + "offload_param.device",
        fmt::format("offload_param needs stage 3, and the stage is {}: set it to 3, or the device to none",
                    zero.stage));
  }
}

// A name that is none would measure nothing without a word.
void check_comms_logger(const C& c) {
  for (const std::string& name : c.comms_logger.prof_ops) {
    if (deepspeed::operation_of(name)) continue;
    const auto nearest = base::nearest_name(name, deepspeed::operation_names());
    fail_at(c, "comms_logger.prof_ops",
            fmt::format(
                "comms_logger.prof_ops names no collective: '{}'{}", name,
                nearest ? fmt::format("; did you mean '{}'?", *nearest)
                        : fmt::format("; it may name {}", fmt::join(deepspeed::operation_names(), ", "))));
  }
  if (c.comms_logger.enabled && !c.comms_logger.prof_all && c.comms_logger.prof_ops.empty()) {
    fail_at(c, "comms_logger.prof_all",
            "comms_logger is enabled, prof_all is false and prof_ops is empty, so that nothing is measured: "
            "name operations, or remove prof_all");
  }
}

// An old name beside the section that has taken its place.
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

}  // namespace

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

}  // namespace lockstep
