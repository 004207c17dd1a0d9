#include "nn/kernels.h"

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

// Null: there is no plugin, or it is switched off.
const Kernels* load_kernels() {
  if (!is_switched_on() || !comm::plugin_exists("cuda")) return nullptr;
  return reinterpret_cast<PluginKernels*>(comm::plugin_function("cuda", kPluginKernels))();
}

}  // namespace

const Kernels* loaded_kernels() {
  static const Kernels* const kernels = load_kernels();
  return kernels;
}

at::ScalarType type_of_products(const at::Tensor& input) {
  return at::autocast::is_autocast_enabled(at::kCUDA) ? at::autocast::get_autocast_dtype(at::kCUDA)
                                                      : input.scalar_type();
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
  return loaded_kernels();
}

}  // namespace lockstep::nn
