#include "engine/sharded_snapshot.h"

#include <lockstep/sharded_model.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "engine/snapshot_names.h"
#include "interop/match_weights.h"
#include "interop/weights_file.h"

namespace lockstep::engine {
namespace {

using checkpoint::Reader;
using checkpoint::Snapshot;
using checkpoint::Target;
using checkpoint::TensorPiece;
using Part = ShardedModel::Part;

TensorPiece piece_of(std::string name, const Part& part) {
  TensorPiece piece = TensorPiece::part(std::move(name), part.data, part.shape, part.first);
  piece.read = part.read;
  return piece;
}

// By the tensors of the module: tied weights have several names there.
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

// What a tensor is read into: another one where the file has it in another floating-point
// dtype. So have an optimizer's state that was not divided, 16 bit beside weights of 16 bit, and
// DeepSpeed's files, which leave buffers as they are.
at::Tensor place_for(const Reader& reader, const std::string& name_in_file, const at::Tensor& tensor) {
  if (!tensor.is_floating_point() || !reader.has(name_in_file)) return tensor;
  const c10::ScalarType dtype = reader.entry(name_in_file).dtype;
  if (!c10::isFloatingType(dtype) || dtype == tensor.scalar_type()) return tensor;
  return at::empty(tensor.sizes(), tensor.options().dtype(dtype).requires_grad(false));
}

// `name_in_file` is given a part's name.
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

std::string master_name(const std::string& name) { return std::string(interop::kMasterPrefix) + name; }

}  // namespace

void add_parts(Snapshot& snapshot, const torch::nn::Module& module, const ShardedModel& sharded,
               bool is_main) {
  if (sharded.options().stage == 0 && !is_main) return;  // every rank holds all of it
  const auto names = names_of(module);
  const auto shapes = sharded.shapes();
  const auto parts = by_name(sharded.parameter_parts());
  std::multimap<std::string, std::string> tied;  // other names of a parameter
  for (const auto& [name, tensor] : interop::weights_of(module)) {
    const std::string saved = std::string(interop::kModelPrefix) + name;
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
  if (sharded.has_masters()) {
    for (const Part& part : sharded.master_parts(ShardedModel::Content::kLater)) {
      snapshot.pieces.push_back(piece_of(master_name(part.name), part));
      // As the weight, under each of its names: whoever reads masters need not know what is tied.
      const auto [first, last] = tied.equal_range(part.name);
      for (auto other = first; other != last; ++other) {
        snapshot.pieces.push_back(piece_of(master_name(other->second), part));
      }
    }
  }
  const ShardedModel::OptimizerParts optimizer = sharded.optimizer_parts(ShardedModel::Content::kLater);
  for (const Part& part : optimizer.parts) {
    snapshot.pieces.push_back(piece_of(name_under("optimizer", part.name), part));
  }
  snapshot.metadata["optimizer"] = Json::parse(optimizer.values);
}

void restore_weight_parts(const Reader& reader, const torch::nn::Module& module, ShardedModel& sharded) {
  // Parameters may have no elements now: they are compared by what they will be.
  const auto shapes = sharded.shapes();
  const auto names = names_of(module);
  NamedTensors own;
  std::map<std::string, at::Tensor> stand_ins;               // one for all names of a tied parameter
  std::map<const void*, std::string> divided;                // which of them a stand-in is for
  std::vector<std::pair<at::Tensor, at::Tensor>> converted;  // buffers, and what is read for them
  for (const auto& [name, tensor] : interop::weights_of(module)) {
    const auto parameter = names.find(tensor.unsafeGetTensorImpl());
    const auto shape = parameter == names.end() ? shapes.end() : shapes.find(parameter->second);
    own.emplace_back(name, tensor);
    if (parameter == names.end()) {
      own.back().second = place_for(reader, std::string(interop::kModelPrefix) + name, tensor);
      converted.emplace_back(tensor, own.back().second);
    }
    if (shape == shapes.end()) continue;
    at::Tensor& stand_in = stand_ins[parameter->second];
    if (!stand_in.defined()) {
      stand_in = torch::empty(shape->second, tensor.options().device(torch::kMeta).requires_grad(false));
      divided[stand_in.unsafeGetTensorImpl()] = parameter->second;
    }
    own.back().second = stand_in;
  }
  const SavedWeights saved = saved_weights(reader);
  const interop::WeightMatch match = match_saved(reader, own, saved);
  std::map<std::string, std::string> name_in_file;  // of divided ones
  std::vector<Target> whole;
  for (const auto& pair : match.pairs) {
    const std::string& in_file = saved.name_in_file.at(pair.from.unsafeGetTensorImpl());
    const auto found = divided.find(pair.to.unsafeGetTensorImpl());
    if (found != divided.end()) {
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
  const bool has_masters = std::any_of(name_in_file.begin(), name_in_file.end(), [&](const auto& names) {
    return reader.has(master_name(names.first));
  });
  sharded.load_parameters(reader_of(reader, [&](const std::string& name) { return name_in_file.at(name); }),
                          has_masters ? reader_of(reader, master_name) : nullptr);
}

void restore_optimizer_parts(const Reader& reader, ShardedModel& sharded) {
  sharded.load_optimizer(reader.metadata().at("optimizer").dump(), reader_of(reader, under("optimizer")));
}

}  // namespace lockstep::engine
