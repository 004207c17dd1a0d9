#pragma once

#include <c10/core/ScalarType.h>
#include <lockstep/named_tensors.h>

#include <filesystem>
#include <optional>
#include <string_view>

namespace lockstep::interop {

// In a checkpoint the weights of the model are "model." and their name; whatever else is
// there (optimizer, generators) has another prefix.
inline constexpr std::string_view kModelPrefix = "model.";
// The average of a weight over the steps is this and the weight's name.
inline constexpr std::string_view kAveragePrefix = "lockstep/average/";
// The float32 master of a 16-bit weight is this and the weight's name.
inline constexpr std::string_view kMasterPrefix = "lockstep/master/";

struct WeightsSource {
  enum class Kind { kCheckpoint, kSafetensors, kTorch };
  Kind kind = Kind::kTorch;
  std::filesystem::path path;  // the checkpoint's own folder, or the file
};

// What a path stands for: a file by what is in it; the folder of a checkpoint; or the
// folder of a run or its "checkpoints", whose newest usable one it is. ConfigError: there
// is none.
WeightsSource find_weights(const std::filesystem::path& path);

// Where the checkpoints of a run are: its folder, or "checkpoints" in it.
std::filesystem::path checkpoints_folder(const std::filesystem::path& run);
// Whether this is the folder of one checkpoint, be it a broken one.
bool is_checkpoint(const std::filesystem::path& folder);

enum class WhichTensors {
  kModel,    // a checkpoint's weights, without kModelPrefix
  kMasters,  // the same, with the master in the place of a weight that has one
  kAll,      // a checkpoint's tensors under their names in it
};

// A file has no other tensors than its weights: all three are the same for it.
NamedTensors read_tensors(const WeightsSource& source, WhichTensors which);
// The weights, in this dtype where they are floating-point: as float32 the masters behind
// 16-bit ones, where the checkpoint has them.
NamedTensors read_weights_as(const WeightsSource& source, c10::ScalarType dtype);
// The average of the weights over the steps, in this dtype where it is floating-point; nullopt: in
// the dtype of the weights. ConfigError: the source has none.
NamedTensors read_average(const WeightsSource& source, std::optional<c10::ScalarType> dtype);
NamedTensors read_weights(const std::filesystem::path& path);

// "*.safetensors" as such, another name as torch.save would.
void write_weights(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace lockstep::interop
