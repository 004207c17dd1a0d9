#include "nn/kernels.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/nn.h>

#include "base/environment.h"
#include "comm/plugin.h"

namespace lockstep::nn {
namespace {

// The kernels keep one counter for each group of columns.
constexpr int64_t kMaxChannels = 32768;

bool is_switched_on() {
  const std::string value = base::Environment::of_process().get(kFusedKernels).value_or("1");
  if (value == "0" || value == "1") return value == "1";
  throw ConfigError("nn", fmt::format("{} must be 0 or 1: '{}'", kFusedKernels, value));
}

const Kernels* load_kernels() {
  if (!comm::plugin_exists("cuda")) return nullptr;
  return reinterpret_cast<PluginKernels*>(comm::plugin_function("cuda", kPluginKernels))();
}

// Null: there is no plugin.
const Kernels* kernels_of_plugin() {
  static const Kernels* const kernels = load_kernels();
  return kernels;
}

}  // namespace

const Kernels* loaded_kernels() {
  static const Kernels* const kernels = is_switched_on() ? kernels_of_plugin() : nullptr;
  return kernels;
}

int compute_capability(const c10::Device& device) {
  const Kernels* kernels = device.is_cuda() ? kernels_of_plugin() : nullptr;
  return kernels == nullptr ? 0 : kernels->compute_capability(device.index());
}

// cmake/LockstepCuda.cmake compiles for these.
bool can_run_on(int capability) { return capability >= 80; }

const Kernels* kernels_on(const c10::Device& device) {
  if (!device.is_cuda()) return nullptr;
  const Kernels* kernels = loaded_kernels();
  return kernels != nullptr && can_run_on(kernels->compute_capability(device.index())) ? kernels : nullptr;
}

// Autocast leaves float64 and integers as they are.
at::ScalarType type_of_products(const at::Tensor& input) {
  const bool is_cast = at::autocast::is_autocast_enabled(at::kCUDA) && input.is_floating_point() &&
                       input.scalar_type() != at::kDouble;
  return is_cast ? at::autocast::get_autocast_dtype(at::kCUDA) : input.scalar_type();
}

bool is_vectors(const at::Tensor& tensor) {
  return tensor.is_contiguous() && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

at::Tensor as_vectors(const at::Tensor& tensor) {
  at::Tensor result = tensor.contiguous();
  return is_vectors(result) ? result : result.clone();
}

at::Tensor scaled(const at::Tensor& values, const at::Tensor& factor, at::ScalarType type) {
  at::Tensor result = at::empty_like(values, values.options().dtype(type));
  // With a dimension, the factor takes part in the choice of the type. Without one, LibTorch rounds it to the
  // type of the values.
  return at::mul_out(result, values, factor.to(at::kFloat).reshape({1}));
}

void refuse_second_derivative(const char* layer) {
  if (!at::GradMode::is_enabled()) return;
  throw ConfigError("nn", fmt::format("the fused kernels of {} have no second derivative: leave out "
                                      "create_graph, or set {} to 0",
                                      layer, kFusedKernels));
}

bool is_fused(const at::Tensor& images) { return kernels_for(images) != nullptr; }

const Kernels* kernels_for(const at::Tensor& images) {
  if (!images.is_cuda() || images.dim() != 4 || images.numel() == 0) return nullptr;
  const at::ScalarType type = images.scalar_type();
  if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16) return nullptr;
  if (images.suggest_memory_format() != at::MemoryFormat::ChannelsLast) return nullptr;
  if (images.size(1) > kMaxChannels || images.size(2) > INT32_MAX || images.size(3) > INT32_MAX)
    return nullptr;
  return kernels_on(images.device());
}

}  // namespace lockstep::nn
