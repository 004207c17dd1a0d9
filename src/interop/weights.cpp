#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include "interop/match_weights.h"
#include "interop/weights_file.h"

namespace lockstep {

LoadedWeights load_weights(torch::nn::Module& module, const std::filesystem::path& file,
                           const LoadWeightsOptions& options) {
  NamedTensors found = interop::read_weights(file);
  if (options.rename) {
    for (auto& [name, tensor] : found) name = options.rename(std::move(name));
  }
  const interop::WeightMatch match = interop::match_weights(interop::weights_of(module), found);
  const std::string differences = match.differences();
  if (options.strict ? !differences.empty() : !match.other_shape.empty()) {
    throw ConfigError("interop",
                      fmt::format("the weights of '{}' do not fit the model, nothing was loaded:{}",
                                  file.string(), differences));
  }
  const torch::NoGradGuard guard;
  for (const auto& pair : match.pairs) {
    at::Tensor to = pair.to;
    to.copy_(pair.from);
  }
  return {match.missing, match.unexpected, match.other_dtype()};
}

void save_weights(const torch::nn::Module& module, const std::filesystem::path& file) {
  interop::write_weights(file, interop::weights_of(module));
}

}  // namespace lockstep
