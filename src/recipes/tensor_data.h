#pragma once

#include <lockstep/config.h>
#include <lockstep/data.h>
#include <lockstep/image_files.h>

#include <string>

namespace lockstep::recipes {

// Data of the user as tensors in files: the flags --inputs, --targets, --val_inputs and --val_targets.
// Each is FILE or FILE:NAME, as read_tensor() takes it; several inputs are separated by commas.
struct TensorDataOptions {
  std::string inputs;
  std::string targets;
  std::string val_inputs;
  std::string val_targets;

  // without_validation: a recipe that splits its training data itself.
  void add_to(ProgramOptions& table, bool without_validation = false);
  // Whether the user gave some. ConfigError: inputs without targets, or targets without inputs.
  bool given() const;
  bool has_validation() const { return !val_inputs.empty(); }
};

// The tensors of a split: the inputs, then the target. Integers become int64, which losses and
// embeddings take. ConfigError: a file cannot be read, a tensor has no such name, or the numbers of
// samples differ.
TensorDataset tensor_dataset(const TensorDataOptions& options, Split split);

}  // namespace lockstep::recipes
