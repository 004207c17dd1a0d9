#include "train/snapshot_names.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include "interop/weights_file.h"

namespace lockstep::train {

std::string name_under(std::string_view part, std::string_view name) {
  return fmt::format("lockstep/{}/{}", part, name);
}

SavedWeights saved_weights(const checkpoint::Reader& reader) {
  SavedWeights saved;
  for (const std::string& name : reader.names()) {
    if (!name.starts_with(interop::kModelPrefix)) continue;
    const checkpoint::TensorEntry& entry = reader.entry(name);
    // Never read nor written: address space alone.
    saved.tensors.emplace_back(name.substr(interop::kModelPrefix.size()),
                               torch::empty(entry.shape, entry.dtype));
    saved.name_in_file[saved.tensors.back().second.unsafeGetTensorImpl()] = name;
  }
  return saved;
}

interop::WeightMatch match_saved(const checkpoint::Reader& reader, const NamedTensors& own,
                                 const SavedWeights& saved) {
  interop::WeightMatch match = interop::match_weights(own, saved.tensors);
  const std::string differences = match.differences();
  if (!differences.empty()) {
    throw ConfigError("train", fmt::format("the checkpoint '{}' is of another model:\n{}",
                                           reader.folder().string(), differences));
  }
  return match;
}

}  // namespace lockstep::train
