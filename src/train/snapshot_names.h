#pragma once

#include <lockstep/named_tensors.h>

#include <map>
#include <string>
#include <string_view>

#include "checkpoint/reader.h"
#include "interop/match_weights.h"

namespace lockstep::train {

// "lockstep/PART/NAME": what is not the model's own.
std::string name_under(std::string_view part, std::string_view name);

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

}  // namespace lockstep::train
