#include "optim/flat_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>

#include "optim/for_blocks.h"

namespace lockstep::optim {
namespace {

// Threads take whole blocks, so that no two write to one cache line but at the ends. A block
// takes some ten microseconds: less is not worth a thread.
constexpr int64_t kBlock = 16384;

FlatType flat_type(const at::Tensor& values) {
  switch (values.scalar_type()) {
    case at::kFloat: return FlatType::kFloat;
    case at::kBFloat16: return FlatType::kBFloat16;
    case at::kHalf: return FlatType::kHalf;
    default:
      throw ConfigError("optim", fmt::format("gradients and copies must be float32, bfloat16 or float16: {}",
                                             c10::toString(values.scalar_type())));
  }
}

}  // namespace

void step_flat(const FlatRule& rule, const FlatMemory& memory) {
  const auto numel = static_cast<int64_t>(memory.numel);
  for_blocks((numel + kBlock - 1) / kBlock, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kBlock;
    const int64_t last = std::min(end * kBlock, numel);
    step_range(rule, memory.part(static_cast<size_t>(first), static_cast<size_t>(last - first)));
  });
}

bool is_flat(const at::Tensor& parameter) {
  return parameter.is_cpu() && parameter.scalar_type() == at::kFloat && !parameter.is_sparse() &&
         parameter.is_non_overlapping_and_dense();
}

void require_flat(std::string_view what, const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (is_flat(parameters[i])) continue;
    throw ConfigError(
        "optim",
        fmt::format("{} steps float32 parameters on the CPU that lie in memory without gaps; parameter {} is "
                    "{} on {}, sizes [{}], strides [{}]",
                    what, i, c10::toString(parameters[i].scalar_type()), parameters[i].device().str(),
                    fmt::join(parameters[i].sizes(), ", "), fmt::join(parameters[i].strides(), ", ")));
  }
}

void step_tensor(const FlatRule& rule, const at::Tensor& parameter, const at::Tensor& gradient,
                 const at::Tensor& state, const at::Tensor& second_state, const FlatExtras& extras) {
  if (gradient.is_sparse()) {
    throw ConfigError("optim", "a gradient is sparse: this optimizer takes dense gradients only");
  }
  at::Tensor values = gradient;
  if (values.strides() != parameter.strides()) {
    values = at::empty_like(parameter, gradient.scalar_type()).copy_(gradient);
  }
  FlatMemory memory;
  memory.numel = static_cast<size_t>(parameter.numel());
  memory.parameters = parameter.mutable_data_ptr<float>();
  memory.gradient_type = flat_type(values);
  memory.gradients = values.const_data_ptr();
  if (state.defined()) memory.state = state.mutable_data_ptr<float>();
  if (second_state.defined()) memory.second_state = second_state.mutable_data_ptr<float>();
  memory.gradient_factor = extras.gradient_factor;
  if (extras.copy.defined()) {
    memory.copy = extras.copy.mutable_data_ptr();
    memory.copy_type = flat_type(extras.copy);
  }
  step_flat(rule, memory);
}

}  // namespace lockstep::optim
