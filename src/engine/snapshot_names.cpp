#include "engine/snapshot_names.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include "interop/weights_file.h"

namespace lockstep::engine {

std::string name_under(std::string_view part, std::string_view name) {
  return fmt::format("lockstep/{}/{}", part, name);
}

void add_section(checkpoint::Snapshot& snapshot, std::string_view part, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    snapshot.pieces.push_back(checkpoint::TensorPiece::whole(name_under(part, name), tensor));
  }
}

NamedTensors read_section(const checkpoint::Reader& reader, std::string_view part) {
  const std::string prefix = name_under(part, "");
  NamedTensors tensors;
  std::vector<checkpoint::Target> targets;
  for (const std::string& name : reader.names()) {
    if (!name.starts_with(prefix)) continue;
    const checkpoint::TensorEntry& entry = reader.entry(name);
    tensors.emplace_back(name.substr(prefix.size()), torch::empty(entry.shape, entry.dtype));
    targets.push_back({.name = name, .out = tensors.back().second});
  }
  reader.read(targets);
  return tensors;
}

SavedWeights saved_weights(const checkpoint::Reader& reader) {
  SavedWeights saved;
  for (const std::string& name : reader.names()) {
    if (!name.starts_with(interop::kModelPrefix)) continue;
    const checkpoint::TensorEntry& entry = reader.entry(name);
    // Without memory: with deterministic algorithms LibTorch would fill it.
    saved.tensors.emplace_back(
        name.substr(interop::kModelPrefix.size()),
        torch::empty(entry.shape, torch::TensorOptions(torch::kMeta).dtype(entry.dtype)));
    saved.name_in_file[saved.tensors.back().second.unsafeGetTensorImpl()] = name;
  }
  return saved;
}

interop::WeightMatch match_saved(const checkpoint::Reader& reader, const NamedTensors& own,
                                 const SavedWeights& saved) {
  interop::WeightMatch match = interop::match_weights(own, saved.tensors);
  const std::string differences = match.differences();
  if (!differences.empty()) {
    throw ConfigError("train", fmt::format("the checkpoint '{}' is of another model; go on with the one that "
                                           "saved it, or train in another folder:\n{}",
                                           reader.folder().string(), differences));
  }
  return match;
}

}  // namespace lockstep::engine
