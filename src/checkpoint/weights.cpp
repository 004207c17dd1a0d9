#include "checkpoint/weights.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "base/file.h"
#include "checkpoint/catalog.h"
#include "checkpoint/compare_weights.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch_file.h"

namespace lockstep::checkpoint {
namespace {

using Kind = WeightsSource::Kind;

constexpr char kCheckpointsName[] = "checkpoints";
constexpr char kSafetensorsSuffix[] = ".safetensors";

// A safetensors file begins with a length of 8 bytes and a JSON object. Neither a zip archive nor a
// pickle of torch.save has a brace at that place.
Kind kind_of_file(const std::filesystem::path& path) {
  const std::string begin = base::InputFile(path, base::cannot_read("interop")).read_some(9, 0);
  if (begin.size() == 9 && begin[8] == '{') return Kind::kSafetensors;
  return path.extension() == kSafetensorsSuffix ? Kind::kSafetensors : Kind::kTorch;
}

NamedTensors read_checkpoint(const std::filesystem::path& folder, WhichTensors which) {
  const Reader reader(folder);
  NamedTensors result;
  std::vector<Target> targets;
  for (const std::string& name : reader.names()) {
    const bool is_model = name.starts_with(kModelPrefix);
    if (which != WhichTensors::kAll && !is_model) continue;
    const std::string shown = which == WhichTensors::kAll ? name : name.substr(kModelPrefix.size());
    const std::string master = std::string(kMasterPrefix) + shown;
    const std::string& source = which == WhichTensors::kMasters && reader.has(master) ? master : name;
    const TensorEntry& entry = reader.entry(source);
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

// The name under which the average of a weight is saved. The average of a tied weight is saved under
// one of its names; the weights of its other names have the same values.
std::string averaged_name(const Reader& reader, const std::string& name) {
  const auto has_average = [&reader](const std::string& of) {
    return reader.has(std::string(kAveragePrefix) + of);
  };
  if (has_average(name)) return name;
  const std::string prefix(kModelPrefix);
  const TensorEntry& own = reader.entry(prefix + name);
  const at::Tensor values = reader.read(prefix + name);
  for (const std::string& other : reader.names()) {
    if (!other.starts_with(prefix) || !has_average(other.substr(prefix.size()))) continue;
    const TensorEntry& entry = reader.entry(other);
    if (entry.shape != own.shape || entry.dtype != own.dtype) continue;
    if (at::equal(reader.read(other), values)) return other.substr(prefix.size());
  }
  throw ConfigError("interop", fmt::format("checkpoint '{}' holds no average of the weight '{}'",
                                           reader.folder().string(), name));
}

NamedTensors read_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  NamedTensors result;
  for (const std::string& name : file.names()) result.emplace_back(name, file.read(name));
  return result;
}

}  // namespace

std::filesystem::path checkpoints_folder(const std::filesystem::path& run) {
  const std::filesystem::path inner = run / kCheckpointsName;
  return list(run).empty() && std::filesystem::is_directory(inner) ? inner : run;
}

bool is_checkpoint(const std::filesystem::path& folder) {
  // "step-..." without a manifest is a broken checkpoint.
  const std::filesystem::path name =
      folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  return std::filesystem::is_directory(folder) &&
         (std::filesystem::exists(folder / kManifestName) || name.string().starts_with("step-"));
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
  const auto newest = newest_valid(folder, Check::kStructure);
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
    throw ConfigError("interop", fmt::format("'{}' is a file of weights without their average: give "
                                             "a checkpoint of a run with ema_decay",
                                             source.path.string()));
  }
  const Reader reader(source.path);
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

}  // namespace lockstep::checkpoint

namespace lockstep {
namespace {

void rename_all(NamedTensors& tensors, const std::function<std::string(std::string)>& rename,
                const std::filesystem::path& file) {
  std::set<std::string> seen;
  for (auto& [name, tensor] : tensors) {
    std::string renamed = rename(name);
    if (!seen.insert(renamed).second) {
      throw ConfigError("interop",
                        fmt::format("two tensors of '{}' are '{}' in the model, one of them '{}' in the file",
                                    file.string(), renamed, name));
    }
    name = std::move(renamed);
  }
}

// A tensor under two names has only the first.
NamedTensors each_once(const torch::OrderedDict<std::string, at::Tensor>& all) {
  NamedTensors result;
  std::unordered_set<const void*> seen;
  for (const auto& item : all) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    result.emplace_back(item.key(), item.value());
  }
  return result;
}

}  // namespace

LoadedWeights load_weights(torch::nn::Module& module, const std::filesystem::path& file,
                           const LoadWeightsOptions& options) {
  NamedTensors found = checkpoint::read_weights(file);
  if (options.rename) rename_all(found, options.rename, file);
  const checkpoint::WeightMatch match = checkpoint::match_weights(checkpoint::weights_of(module), found);
  const std::string differences = match.differences();
  if (options.strict ? !differences.empty() : !match.other_shape.empty()) {
    throw ConfigError("interop",
                      fmt::format("the weights of '{}' do not fit the model, nothing was loaded:{}",
                                  file.string(), differences));
  }
  const torch::NoGradGuard guard;
  for (const auto& pair : match.pairs) {
    at::Tensor to = pair.to;
    to.copy_(pair.from);
  }
  return {match.missing, match.unexpected, match.other_dtype()};
}

void save_weights(const torch::nn::Module& module, const std::filesystem::path& file) {
  checkpoint::write_weights(file, checkpoint::weights_of(module));
}

void save_weights(const NamedTensors& tensors, const std::filesystem::path& file) {
  checkpoint::write_weights(file, tensors);
}

NamedTensors read_weights(const std::filesystem::path& file) { return checkpoint::read_weights(file); }

NamedTensors named_parameters(const torch::nn::Module& module) {
  return each_once(module.named_parameters());
}

NamedTensors named_buffers(const torch::nn::Module& module) { return each_once(module.named_buffers()); }

}  // namespace lockstep
