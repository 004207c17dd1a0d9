#pragma once

#include <c10/core/ScalarType.h>
#include <lockstep/weights.h>

#include <filesystem>
#include <optional>
#include <string_view>

namespace lockstep::checkpoint {

// The prefix of the weights of the model in a checkpoint. Other tensors (optimizer, generators) have
// other prefixes.
inline constexpr std::string_view kModelPrefix = "model.";
// The prefix of the average of a weight over the steps.
inline constexpr std::string_view kAveragePrefix = "lockstep/average/";
// The prefix of the float32 master of a 16-bit weight.
inline constexpr std::string_view kMasterPrefix = "lockstep/master/";

struct WeightsSource {
  enum class Kind { kCheckpoint, kSafetensors, kTorch };
  Kind kind = Kind::kTorch;
  std::filesystem::path path;  // the folder of the checkpoint, or the file
};

// Accepts a file, whose content shows its kind; the folder of a checkpoint; or the folder of a run or
// its "checkpoints", of which the newest usable one is taken. ConfigError: there is none.
WeightsSource find_weights(const std::filesystem::path& path);

// The folder with the checkpoints of a run: the folder of the run, or "checkpoints" in it.
std::filesystem::path checkpoints_folder(const std::filesystem::path& run);
// Whether this is the folder of one checkpoint, which may be broken.
bool is_checkpoint(const std::filesystem::path& folder);

enum class WhichTensors {
  kModel,    // a checkpoint's weights, without kModelPrefix
  kMasters,  // the same, with the master instead of a weight that has one
  kAll,      // all tensors of a checkpoint, under their full names
};

// A file has only weights: all three are the same.
NamedTensors read_tensors(const WeightsSource& source, WhichTensors which);
// The weights; floating-point ones are converted to this dtype. For float32 the masters of 16-bit
// weights are taken if the checkpoint has them.
NamedTensors read_weights_as(const WeightsSource& source, c10::ScalarType dtype);
// The average of the weights over the steps; floating-point ones are converted to this dtype, nullopt:
// to the dtype of the weights. ConfigError: the source has no average.
NamedTensors read_average(const WeightsSource& source, std::optional<c10::ScalarType> dtype);
NamedTensors read_weights(const std::filesystem::path& path);

// A name "*.safetensors" makes a safetensors file, another name a file of torch.save.
void write_weights(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace lockstep::checkpoint
