#include "interop/weights_file.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors_file.h"
#include "interop/file_bytes.h"
#include "interop/safetensors_writer.h"
#include "interop/torch_file.h"

namespace lockstep::interop {
namespace {

using Kind = WeightsSource::Kind;

constexpr char kCheckpointsName[] = "checkpoints";
constexpr char kSafetensorsSuffix[] = ".safetensors";

// A safetensors file begins with a length of 8 bytes and a JSON object; neither a zip
// archive nor a pickle of torch.save has a brace there.
Kind kind_of_file(const std::filesystem::path& path) {
  const std::string begin = FileBytes(path).read_text(0, 9);
  if (begin.size() == 9 && begin[8] == '{') return Kind::kSafetensors;
  return path.extension() == kSafetensorsSuffix ? Kind::kSafetensors : Kind::kTorch;
}

NamedTensors read_checkpoint(const std::filesystem::path& folder, WhichTensors which) {
  const checkpoint::Reader reader(folder);
  NamedTensors result;
  std::vector<checkpoint::Target> targets;
  for (const std::string& name : reader.names()) {
    const bool is_model = name.starts_with(kModelPrefix);
    if (which != WhichTensors::kAll && !is_model) continue;
    const std::string shown = which == WhichTensors::kAll ? name : name.substr(kModelPrefix.size());
    const std::string master = std::string(kMasterPrefix) + shown;
    const std::string& source = which == WhichTensors::kMasters && reader.has(master) ? master : name;
    const checkpoint::TensorEntry& entry = reader.entry(source);
    const at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(entry.dtype));
    targets.push_back({source, tensor, 0});
    result.emplace_back(shown, tensor);
  }
  if (result.empty() && which != WhichTensors::kAll && !reader.names().empty()) {
    throw ConfigError("interop",
                      fmt::format("checkpoint '{}' holds no weights of a model: no tensor begins with '{}'",
                                  folder.string(), kModelPrefix));
  }
  reader.read(targets);
  return result;
}

NamedTensors read_safetensors(const std::filesystem::path& path) {
  const checkpoint::SafetensorsFile file(path);
  NamedTensors result;
  for (const std::string& name : file.names()) result.emplace_back(name, file.read(name));
  return result;
}

}  // namespace

std::filesystem::path checkpoints_folder(const std::filesystem::path& run) {
  const std::filesystem::path inner = run / kCheckpointsName;
  return checkpoint::list(run).empty() && std::filesystem::is_directory(inner) ? inner : run;
}

bool is_checkpoint(const std::filesystem::path& folder) {
  // "step-..." without a manifest is a broken one.
  const std::filesystem::path name =
      folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  return std::filesystem::is_directory(folder) &&
         (std::filesystem::exists(folder / checkpoint::kManifestName) || name.string().starts_with("step-"));
}

WeightsSource find_weights(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    throw ConfigError("interop",
                      fmt::format("there is no checkpoint or file '{}': give a file that torch.save or "
                                  "safetensors wrote, or the folder of a run or of a checkpoint",
                                  path.string()));
  }
  if (!std::filesystem::is_directory(path)) return {kind_of_file(path), path};
  if (is_checkpoint(path)) return {Kind::kCheckpoint, path};
  const std::filesystem::path folder = checkpoints_folder(path);
  const auto newest = checkpoint::newest_valid(folder, checkpoint::Check::kStructure);
  if (!newest)
    throw ConfigError("interop", fmt::format("there is no usable checkpoint in '{}'", path.string()));
  return {Kind::kCheckpoint, newest->path};
}

NamedTensors read_tensors(const WeightsSource& source, WhichTensors which) {
  switch (source.kind) {
    case Kind::kCheckpoint: return read_checkpoint(source.path, which);
    case Kind::kSafetensors: return read_safetensors(source.path);
    default: return read_torch_file(source.path);
  }
}

NamedTensors read_weights_as(const WeightsSource& source, c10::ScalarType dtype) {
  NamedTensors weights =
      read_tensors(source, dtype == c10::kFloat ? WhichTensors::kMasters : WhichTensors::kModel);
  for (auto& [name, tensor] : weights) {
    if (tensor.is_floating_point()) tensor = tensor.to(dtype);
  }
  return weights;
}

NamedTensors read_weights(const std::filesystem::path& path) {
  return read_tensors(find_weights(path), WhichTensors::kModel);
}

void write_weights(const std::filesystem::path& path, const NamedTensors& tensors) {
  path.extension() == kSafetensorsSuffix ? write_safetensors_file(path, tensors)
                                         : write_torch_file(path, tensors);
}

}  // namespace lockstep::interop
