#pragma once

#include <lockstep/named_tensors.h>

#include <map>
#include <string>
#include <string_view>

#include "checkpoint/reader.h"
#include "checkpoint/snapshot.h"
#include "interop/match_weights.h"

namespace lockstep::engine {

// "lockstep/PART/NAME": what is not the model's own.
std::string name_under(std::string_view part, std::string_view name);

// Whole tensors under such names, and back.
void add_section(checkpoint::Snapshot& snapshot, std::string_view part, const NamedTensors& tensors);
NamedTensors read_section(const checkpoint::Reader& reader, std::string_view part);

// The model's tensors in a checkpoint, without their content.
struct SavedWeights {
  NamedTensors tensors;
  std::map<const void*, std::string> name_in_file;  // by tensor
};
SavedWeights saved_weights(const checkpoint::Reader& reader);

// ConfigError: the checkpoint is of another model than the one that has `own`, and what
// differs.
interop::WeightMatch match_saved(const checkpoint::Reader& reader, const NamedTensors& own,
                                 const SavedWeights& saved);

}  // namespace lockstep::engine
