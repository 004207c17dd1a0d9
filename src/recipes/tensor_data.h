#pragma once

#include <c10/core/ScalarType.h>
#include <lockstep/config.h>
#include <lockstep/data.h>
#include <lockstep/image_files.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

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
  // The number of tensors of a sample, with the target.
  size_t count() const;
};

// An input of a model: its name, and the dtype that it takes; nullopt: any.
struct WantedTensor {
  std::string name;
  std::optional<c10::ScalarType> dtype;
};

// The tensors of a split: the inputs, then the target. Those that `wanted` names get its dtypes, except that
// floating-point numbers stay as they are; of the others integers become int64, which losses and embeddings
// take. ConfigError: a file cannot be read, a tensor has no such name, a value does not fit into the dtype,
// or the numbers of samples differ.
TensorDataset tensor_dataset(const TensorDataOptions& options, Split split,
                             const std::vector<WantedTensor>& wanted = {});

}  // namespace lockstep::recipes
