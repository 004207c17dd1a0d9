#include "deepspeed/key.h"

namespace lockstep::deepspeed {

using C = DeepSpeedConfig;

void add_precision_keys(std::vector<Key>& keys) {
  using Fp16 = C::Fp16;
  Section<Fp16>(
      keys, "fp16", [](auto& c) -> auto& { return c.fp16; })
      .honour("enabled", &Fp16::enabled, "the model computes in fp16, with fp32 master weights")
      .honour("auto_cast", &Fp16::auto_cast, "cast inputs to fp16")
      .honour("loss_scale", &Fp16::loss_scale, "0: dynamic", {.range = {.least = 0}})
      .honour("initial_scale_power", &Fp16::initial_scale_power, "the first dynamic scale is 2 to this",
              {.range = {.least = 0, .most = 127}})
      .honour("loss_scale_window", &Fp16::loss_scale_window,
              "steps without overflow before the scale doubles", {.range = {.least = 0}})
      .honour("hysteresis", &Fp16::hysteresis, "overflows before the scale halves", {.range = {.least = 1}})
      .honour("consecutive_hysteresis", &Fp16::consecutive_hysteresis,
              "a step without overflow fills it up again")
      .honour("min_loss_scale", &Fp16::min_loss_scale, "an overflow at this scale ends the training",
              {.range = {.least = 0}})
      .fix("fp16_master_weights_and_grads", {"false"}, "master weights are fp32");

  Section<C::Bf16>(
      keys, "bf16", [](auto& c) -> auto& { return c.bf16; })
      .honour("enabled", &C::Bf16::enabled, "the model computes in bf16, with fp32 master weights")
      .honour("check_grad_overflow", &C::Bf16::check_grad_overflow,
              "skip a step with inf or nan in its gradients")
      .fix("immediate_grad_update", {"false"}, "gradients are born in their bucket, there is no later copy")
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
              "the model's dtype; another one is refused: gradients are summed in that")
      .fix("param_dtype", {"null"}, "fp16 and bf16 say the model's dtype")
      .fix("buffer_dtype", {"null"}, "buffers have the model's dtype")
      .fix("keep_in_fp32_modules", {"\"auto\"", "[]"}, "every module has the model's dtype");
}

}  // namespace lockstep::deepspeed
