#include "interop/weights_file.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>

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

// The name that has the average of a weight. An average is saved under one name of a tied weight;
// its other names hold the same values.
std::string averaged_name(const checkpoint::Reader& reader, const std::string& name) {
  const auto has_average = [&reader](const std::string& of) {
    return reader.has(std::string(kAveragePrefix) + of);
  };
  if (has_average(name)) return name;
  const std::string prefix(kModelPrefix);
  const checkpoint::TensorEntry& own = reader.entry(prefix + name);
  const at::Tensor values = reader.read(prefix + name);
  for (const std::string& other : reader.names()) {
    if (!other.starts_with(prefix) || !has_average(other.substr(prefix.size()))) continue;
    const checkpoint::TensorEntry& entry = reader.entry(other);
    if (entry.shape != own.shape || entry.dtype != own.dtype) continue;
    if (at::equal(reader.read(other), values)) return other.substr(prefix.size());
  }
  throw ConfigError("interop", fmt::format("checkpoint '{}' holds no average of the weight '{}'",
                                           reader.folder().string(), name));
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

NamedTensors read_average(const WeightsSource& source, std::optional<c10::ScalarType> dtype) {
  if (source.kind != Kind::kCheckpoint) {
    throw ConfigError("interop",
                      fmt::format("'{}' is a file of weights, and has no average beside them: give "
                                  "a checkpoint of a run with ema_decay",
                                  source.path.string()));
  }
  const checkpoint::Reader reader(source.path);
  const std::vector<std::string> names = reader.names();
  if (std::none_of(names.begin(), names.end(),
                   [](const std::string& name) { return name.starts_with(kAveragePrefix); })) {
    throw ConfigError("interop", fmt::format("checkpoint '{}' holds no averaged weights: its run had no "
                                             "ema_decay",
                                             source.path.string()));
  }
  NamedTensors result;
  for (const std::string& name : names) {
    if (!name.starts_with(kModelPrefix)) continue;
    const std::string shown = name.substr(kModelPrefix.size());
    const at::Tensor average = reader.read(std::string(kAveragePrefix) + averaged_name(reader, shown));
    result.emplace_back(
        shown, average.is_floating_point() ? average.to(dtype.value_or(reader.entry(name).dtype)) : average);
  }
  return result;
}

NamedTensors read_weights(const std::filesystem::path& path) {
  return read_tensors(find_weights(path), WhichTensors::kModel);
}

void write_weights(const std::filesystem::path& path, const NamedTensors& tensors) {
  path.extension() == kSafetensorsSuffix ? write_safetensors_file(path, tensors)
                                         : write_torch_file(path, tensors);
}

}  // namespace lockstep::interop
