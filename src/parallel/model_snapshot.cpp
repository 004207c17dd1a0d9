#include "parallel/model_snapshot.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "checkpoint/compare_weights.h"
#include "checkpoint/weights.h"

namespace lockstep::parallel {

namespace {

using checkpoint::Reader;
using checkpoint::Snapshot;
using checkpoint::Target;
using checkpoint::TensorPiece;
using Part = ShardedModel::Part;

// ConfigError: the checkpoint is of another model than the one with the weights `own`.
checkpoint::WeightMatch match_saved(const Reader& reader, const NamedTensors& own,
                                    const SavedWeights& saved) {
  checkpoint::WeightMatch match = checkpoint::match_weights(own, saved.tensors);
  const std::string differences = match.differences();
  if (!differences.empty()) {
    throw ConfigError("train",
                      fmt::format("the checkpoint '{}' is of another model; resume with the one that "
                                  "saved it, or train in another folder:\n{}",
                                  reader.folder().string(), differences));
  }
  return match;
}

TensorPiece piece_of(std::string name, const Part& part) {
  TensorPiece piece = TensorPiece::part(std::move(name), part.data, part.shape, part.first);
  piece.read = part.read;
  return piece;
}

// The names of parameters by tensor; a tied one has one name here and several in the module.
std::map<const void*, std::string> names_of(const torch::nn::Module& module) {
  std::map<const void*, std::string> names;
  for (const auto& [name, tensor] : named_parameters(module)) names[tensor.unsafeGetTensorImpl()] = name;
  return names;
}

std::map<std::string, std::vector<Part>> by_name(const std::vector<Part>& parts) {
  std::map<std::string, std::vector<Part>> result;
  for (const Part& part : parts) result[part.name].push_back(part);
  return result;
}

// The tensor to read into: a new one if the file has another floating-point dtype. That happens with the
// 16-bit optimizer state of a replicated 16-bit model, and with DeepSpeed's files, which do not convert
// buffers.
at::Tensor place_for(const Reader& reader, const std::string& name_in_file, const at::Tensor& tensor) {
  if (!tensor.is_floating_point() || !reader.has(name_in_file)) return tensor;
  const c10::ScalarType dtype = reader.entry(name_in_file).dtype;
  if (!c10::isFloatingType(dtype) || dtype == tensor.scalar_type()) return tensor;
  return at::empty(tensor.sizes(), tensor.options().dtype(dtype).requires_grad(false));
}

// `name_in_file` maps the name of a part.
template <typename NameInFile>
ShardedModel::ReadParts reader_of(const Reader& reader, NameInFile name_in_file) {
  return [&reader, name_in_file](const std::vector<Part>& parts) {
    std::vector<Target> targets;
    for (const Part& part : parts) {
      const std::string name = name_in_file(part.name);
      targets.push_back(
          {.name = name, .out = place_for(reader, name, part.data), .first_element = part.first});
    }
    reader.read(targets);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!targets[i].out.is_same(parts[i].data)) parts[i].data.copy_(targets[i].out);
    }
  };
}

auto under(std::string_view section) {
  return [section](const std::string& name) { return name_under(section, name); };
}

std::string master_name(const std::string& name) { return std::string(checkpoint::kMasterPrefix) + name; }

}  // namespace

std::string name_under(std::string_view section, std::string_view name) {
  return fmt::format("lockstep/{}/{}", section, name);
}

void add_section(Snapshot& snapshot, std::string_view section, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    snapshot.pieces.push_back(TensorPiece::whole(name_under(section, name), tensor));
  }
}

NamedTensors read_section(const checkpoint::Reader& reader, std::string_view section) {
  const std::string prefix = name_under(section, "");
  NamedTensors tensors;
  std::vector<Target> targets;
  for (const std::string& name : reader.names()) {
    if (!name.starts_with(prefix)) continue;
    const checkpoint::TensorEntry& entry = reader.entry(name);
    tensors.emplace_back(name.substr(prefix.size()), torch::empty(entry.shape, entry.dtype));
    targets.push_back({.name = name, .out = tensors.back().second});
  }
  reader.read(targets);
  return tensors;
}

SavedWeights saved_weights(const Reader& reader) {
  SavedWeights saved;
  for (const std::string& name : reader.names()) {
    if (!name.starts_with(checkpoint::kModelPrefix)) continue;
    const checkpoint::TensorEntry& entry = reader.entry(name);
    // Meta tensors: with deterministic algorithms LibTorch would fill real ones.
    saved.tensors.emplace_back(
        name.substr(checkpoint::kModelPrefix.size()),
        torch::empty(entry.shape, torch::TensorOptions(torch::kMeta).dtype(entry.dtype)));
    saved.name_in_file[saved.tensors.back().second.unsafeGetTensorImpl()] = name;
  }
  return saved;
}

namespace {

// Buffers that are not part of the state dict are not under the names of weights, so that Python does not
// find them in the file.
constexpr std::string_view kBuffers = "buffers";

// Reads those that the checkpoint has: an imported one has none.
void restore_buffers(const Reader& reader, const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : checkpoint::non_persistent_buffers(module)) {
    const std::string saved = name_under(kBuffers, name);
    if (!reader.has(saved)) continue;
    const at::Tensor read = place_for(reader, saved, tensor);
    reader.read({Target{.name = saved, .out = read}});
    if (!read.is_same(tensor)) tensor.copy_(read);
  }
}

}  // namespace

// --- a replicated model ---

void add_weights(Snapshot& snapshot, const torch::nn::Module& module) {
  for (const auto& [name, tensor] : checkpoint::weights_of(module)) {
    snapshot.pieces.push_back(TensorPiece::whole(std::string(checkpoint::kModelPrefix) + name, tensor));
  }
  add_section(snapshot, kBuffers, checkpoint::non_persistent_buffers(module));
}

void add_optimizer(Snapshot& snapshot, const torch::nn::Module& module,
                   const torch::optim::Optimizer& optimizer) {
  const OptimizerState state = optimizer_state(optimizer, named_parameters(module));
  add_section(snapshot, "optimizer", state.tensors);
  snapshot.metadata["optimizer"] = Json::parse(state.values);
}

void restore_weights(const Reader& reader, const torch::nn::Module& module) {
  const SavedWeights saved = saved_weights(reader);
  const checkpoint::WeightMatch match = match_saved(reader, checkpoint::weights_of(module), saved);
  const torch::NoGradGuard no_grad;
  std::vector<Target> targets;
  for (const auto& pair : match.pairs) {
    targets.push_back({.name = saved.name_in_file.at(pair.from.unsafeGetTensorImpl()), .out = pair.to});
  }
  reader.read(targets);
  restore_buffers(reader, module);
}

void restore_optimizer(const Reader& reader, const torch::nn::Module& module,
                       torch::optim::Optimizer& optimizer) {
  load_optimizer_state(optimizer, named_parameters(module),
                       {read_section(reader, "optimizer"), reader.metadata().at("optimizer").dump()});
}

// --- a sharded model ---

void add_weight_shards(Snapshot& snapshot, const torch::nn::Module& module, const ShardedModel& sharded,
                       bool is_main) {
  if (sharded.options().zero.stage == 0 && !is_main) return;  // every rank holds all
  const auto names = names_of(module);
  const auto shapes = sharded.shapes();
  const auto parts = by_name(sharded.parameter_parts());
  std::multimap<std::string, std::string> tied;  // other names of a parameter
  for (const auto& [name, tensor] : checkpoint::weights_of(module)) {
    const std::string saved = std::string(checkpoint::kModelPrefix) + name;
    const auto parameter = names.find(tensor.unsafeGetTensorImpl());
    if (parameter == names.end() || shapes.count(parameter->second) == 0) {
      if (is_main) snapshot.pieces.push_back(TensorPiece::whole(saved, tensor));
      continue;
    }
    const auto own = parts.find(parameter->second);
    if (own == parts.end()) continue;
    for (const Part& part : own->second) snapshot.pieces.push_back(piece_of(saved, part));
    if (name != parameter->second) tied.emplace(parameter->second, name);
  }
  if (is_main) add_section(snapshot, kBuffers, checkpoint::non_persistent_buffers(module));
  if (sharded.has_masters()) {
    for (const Part& part : sharded.master_parts(ShardedModel::Content::kLater)) {
      snapshot.pieces.push_back(piece_of(master_name(part.name), part));
      // Under each name of the weight: readers of masters need not know what is tied.
      const auto [first, last] = tied.equal_range(part.name);
      for (auto other = first; other != last; ++other) {
        snapshot.pieces.push_back(piece_of(master_name(other->second), part));
      }
    }
  }
}

void add_shards(Snapshot& snapshot, const torch::nn::Module& module, const ShardedModel& sharded,
                bool is_main) {
  add_weight_shards(snapshot, module, sharded, is_main);
  if (sharded.options().zero.stage == 0 && !is_main) return;
  const ShardedModel::OptimizerParts optimizer = sharded.optimizer_parts(ShardedModel::Content::kLater);
  for (const Part& part : optimizer.parts) {
    snapshot.pieces.push_back(piece_of(name_under("optimizer", part.name), part));
  }
  snapshot.metadata["optimizer"] = Json::parse(optimizer.values);
}

void restore_weight_shards(const Reader& reader, const torch::nn::Module& module, ShardedModel& sharded) {
  // Parameters may have no elements now: meta tensors of their full shapes are compared instead.
  const auto shapes = sharded.shapes();
  const auto names = names_of(module);
  NamedTensors own;
  std::map<std::string, at::Tensor> stand_ins;               // one for all names of a tied parameter
  std::map<const void*, std::string> sharded_names;          // the parameter of each stand-in
  std::vector<std::pair<at::Tensor, at::Tensor>> converted;  // buffers, and what is read for them
  for (const auto& [name, tensor] : checkpoint::weights_of(module)) {
    const auto parameter = names.find(tensor.unsafeGetTensorImpl());
    const auto shape = parameter == names.end() ? shapes.end() : shapes.find(parameter->second);
    own.emplace_back(name, tensor);
    if (parameter == names.end()) {
      own.back().second = place_for(reader, std::string(checkpoint::kModelPrefix) + name, tensor);
      converted.emplace_back(tensor, own.back().second);
    }
    if (shape == shapes.end()) continue;
    at::Tensor& stand_in = stand_ins[parameter->second];
    if (!stand_in.defined()) {
      stand_in = torch::empty(shape->second, tensor.options().device(torch::kMeta).requires_grad(false));
      sharded_names[stand_in.unsafeGetTensorImpl()] = parameter->second;
    }
    own.back().second = stand_in;
  }
  const SavedWeights saved = saved_weights(reader);
  const checkpoint::WeightMatch match = match_saved(reader, own, saved);
  std::map<std::string, std::string> name_in_file;  // of sharded parameters
  std::vector<Target> whole;
  for (const auto& pair : match.pairs) {
    const std::string& in_file = saved.name_in_file.at(pair.from.unsafeGetTensorImpl());
    const auto found = sharded_names.find(pair.to.unsafeGetTensorImpl());
    if (found != sharded_names.end()) {
      name_in_file[found->second] = in_file;
    } else {
      whole.push_back({.name = in_file, .out = pair.to});
    }
  }
  const torch::NoGradGuard no_grad;
  reader.read(whole);
  for (auto& [buffer, read] : converted) {
    if (!read.is_same(buffer)) buffer.copy_(read);
  }
  restore_buffers(reader, module);
  const bool has_masters = std::any_of(name_in_file.begin(), name_in_file.end(), [&](const auto& names) {
    return reader.has(master_name(names.first));
  });
  sharded.load_parameters(reader_of(reader, [&](const std::string& name) { return name_in_file.at(name); }),
                          has_masters ? reader_of(reader, master_name) : nullptr);
}

void restore_optimizer_shards(const Reader& reader, ShardedModel& sharded) {
  sharded.load_optimizer(reader.metadata().at("optimizer").dump(), reader_of(reader, under("optimizer")));
}

}  // namespace lockstep::parallel
