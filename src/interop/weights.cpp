#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <set>

#include "interop/match_weights.h"
#include "interop/weights_file.h"

namespace lockstep {
namespace {

void rename_all(NamedTensors& tensors, const std::function<std::string(std::string)>& rename,
                const std::filesystem::path& file) {
  std::set<std::string> seen;
  for (auto& [name, tensor] : tensors) {
    std::string renamed = rename(name);
    if (!seen.insert(renamed).second) {
      throw ConfigError("interop",
                        fmt::format("two tensors of '{}' are '{}' in the model, one of them '{}' in the file",
                                    file.string(), renamed, name));
    }
    name = std::move(renamed);
  }
}

}  // namespace

LoadedWeights load_weights(torch::nn::Module& module, const std::filesystem::path& file,
                           const LoadWeightsOptions& options) {
  NamedTensors found = interop::read_weights(file);
  if (options.rename) rename_all(found, options.rename, file);
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
