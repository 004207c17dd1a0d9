#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "optim/flat_kernels.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace lockstep::optim {

// Steps of optimizers on the CPU by the kernels of flat_kernels.h: in several threads, on tensors, and
// in place of an optimizer's own step.

// Calls body(begin, end) for parts of [0, blocks) in LibTorch's threads and waits for all; inside such a
// thread it uses that thread alone. Replaces at::parallel_for, whose template runs in one thread when it
// is compiled without the OpenMP of LibTorch's compiler, as this library is. `body` must not throw.
void for_blocks(int64_t blocks, const std::function<void(int64_t begin, int64_t end)>& body);

// The rule of the `step`-th step (the first is 1) by the options of a parameter group of Adam, AdamW,
// Adagrad, Lion or SGD. Nullopt: options of another class, or one that the kernels do not have
// (amsgrad).
std::optional<FlatRule> flat_rule(const torch::optim::OptimizerOptions& options, int64_t step);

// step_range() in LibTorch's threads, or in this one alone inside such a thread. The bits do not depend
// on the number of threads. `tails`, in the order of their elements: of the tensors in the memory, for Adam.
void step_flat(const FlatRule& rule, const FlatMemory& memory, const std::vector<FlatSegment>& tails = {});

struct FlatExtras {
  float gradient_factor = 1;  // of every gradient, in float32
  // If defined, of one of these types and with the parameter's strides: receives the updated parameter.
  at::Tensor copy = {};
};

// An optimizer that steps the tails of tensors as LibTorch's fused Adam does.
class StepsTails {
 public:
  virtual ~StepsTails() = default;

  // A parameter that is flat memory with parts of tensors, and where their tails are in it. A later call
  // replaces them. The parameter must outlive the optimizer's steps.
  void set_tails(const at::Tensor& parameter, std::vector<FlatSegment> tails);
  // Of all parameters those of one whole tensor again.
  void clear_tails() { tails_.clear(); }
  // As set; of another parameter those of one whole tensor.
  std::vector<FlatSegment> tails_of(const at::Tensor& parameter) const;

 private:
  std::unordered_map<const c10::TensorImpl*, std::vector<FlatSegment>> tails_;
};

// A step of one parameter by its gradient. Parameter and states are float32, on the CPU, without gaps
// and with the same strides. The gradient is float32, bfloat16 or float16; one with other strides is
// copied first. ConfigError: it is sparse, or of another type.
void step_tensor(const FlatRule& rule, const at::Tensor& parameter, const at::Tensor& gradient,
                 const at::Tensor& state = {}, const at::Tensor& second_state = {},
                 const FlatExtras& extras = {}, const std::vector<FlatSegment>& tails = {});

// Whether step_tensor() can take a parameter.
bool is_flat(const at::Tensor& parameter);
// ConfigError names the first parameter that step_tensor() cannot take, and why.
void require_flat(std::string_view what, const std::vector<at::Tensor>& parameters);

// One step of one parameter by the kernels instead of the optimizer's own step, on the optimizer's
// state; `options` are those of the parameter's group. The gradient is float32, bfloat16 or float16.
// False, and nothing is changed: the optimizer is none of torch::optim's SGD, Adam, AdamW and Adagrad
// and ours of make_cpu_adam, make_cpu_adagrad and make_lion, an option is one that the kernels lack, or
// the parameter is not flat float32 memory on the CPU.
bool step_one_flat(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options,
                   const at::Tensor& parameter, const at::Tensor& gradient, const FlatExtras& extras = {});

}  // namespace lockstep::optim
