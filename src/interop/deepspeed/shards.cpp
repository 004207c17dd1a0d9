#include "interop/deepspeed/shards.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "interop/deepspeed/whole_names.h"
#include "interop/pickle.h"

namespace lockstep::interop {
namespace {

int64_t numel_of(const TensorReference& tensor) {
  int64_t result = 1;
  for (const int64_t size : tensor.sizes) result *= size;
  return result;
}

// What the optimizer of a model that is not divided may have, in the order of the model:
// no buffers, and tied weights once.
std::vector<ShapedName> parameters_of(const ModelStates& model) {
  std::vector<ShapedName> result;
  std::set<std::tuple<std::string, int64_t, std::vector<int64_t>>> places;
  for (const auto& [name, tensor] : model.module) {
    if (model.buffers.count(name) > 0) continue;
    const bool is_new = places.emplace(tensor->storage.key, tensor->offset, tensor->sizes).second;
    if (is_new) result.push_back({name, tensor->sizes});
  }
  return result;
}

}  // namespace

DeepSpeedShards::DeepSpeedShards(const DeepSpeedFiles& files) {
  for (const auto& path : files.model) {
    auto archive = std::make_unique<TorchArchive>(path);
    ModelStates states = read_model_states(*archive);
    models_.push_back({std::move(archive), std::move(states)});
  }
  if (!files.optimizer.empty()) {
    open_divided(files);
  } else if (!model().groups.empty()) {
    fail_model(
        "its optimizer is divided, and there is no file of it ('zero_pp_rank_0_mp_rank_00_optim_states.pt') "
        "beside it");
  } else if (models_.size() > 1) {
    fail_model("its model is divided, and there is no file of the optimizer beside it");
  } else if (model().optimizer != nullptr) {
    open_whole();
  }
}

void DeepSpeedShards::open_divided(const DeepSpeedFiles& files) {
  for (const auto& path : files.optimizer) {
    auto archive = std::make_shared<TorchArchive>(path);
    OptimizerStates states = read_optimizer_states(*archive);
    optimizer_.push_back({std::move(archive), std::move(states)});
  }
  check_ranks(files);
  stage_ = optimizer_[0].states.stage;
  ranks_ = optimizer_.size();
  has_masters_ = true;
  check_flats();
  find_trained();
}

void DeepSpeedShards::check_ranks(const DeepSpeedFiles& files) const {
  const OptimizerStates& first = optimizer_[0].states;
  for (const Optimizer& rank : optimizer_) {
    if (rank.states.partitions != static_cast<int64_t>(optimizer_.size())) {
      rank.archive->fail(
          fmt::format("it is one of {} files of the optimizer, and {} are in '{}': others are missing, "
                      "or left from a save with another number of ranks",
                      rank.states.partitions, optimizer_.size(), files.folder.string()));
    }
    if (rank.states.stage != first.stage || rank.states.flats.size() != first.flats.size() ||
        rank.states.groups.size() != first.groups.size()) {
      rank.archive->fail(
          "its stage or its groups are others than those of rank 0: it is of another training");
    }
  }
  const bool is_divided = first.stage == 3;
  for (const Model& rank : models_) {
    const bool other_ranks =
        rank.states.ranks > 0 && rank.states.ranks != static_cast<int64_t>(optimizer_.size());
    if (other_ranks || rank.states.steps != model().steps) {
      rank.archive->fail(
          fmt::format("it was saved at step {} by {} ranks; rank 0 saved at step {}, and there are {} "
                      "files of the optimizer: they are of different saves",
                      rank.states.steps, rank.states.ranks, model().steps, optimizer_.size()));
    }
  }
  if (models_.size() != (is_divided ? optimizer_.size() : 1)) {
    fail_model(fmt::format("there are {} files of the model and {} of the optimizer, of stage {}",
                           models_.size(), optimizer_.size(), first.stage));
  }
}

// What belongs together has one dtype, and a state is as long as its weights.
void DeepSpeedShards::check_flats() const {
  for (const Optimizer& rank : optimizer_) {
    for (size_t i = 0; i < rank.states.flats.size(); ++i) {
      const OptimizerStates::Flat& flat = rank.states.flats[i];
      const OptimizerStates::Flat& first = optimizer_[0].states.flats[i];
      bool alike = flat.master->sizes.size() == 1 && flat.master->dtype == first.master->dtype &&
                   flat.fields.size() == first.fields.size() && flat.step == first.step &&
                   flat.has_state == first.has_state;
      for (const auto& [name, tensor] : flat.fields) {
        const auto other = first.fields.find(name);
        alike = alike && other != first.fields.end() && other->second->dtype == tensor->dtype &&
                tensor->sizes.size() == 1 && numel_of(*tensor) >= numel_of(*flat.master);
      }
      if (!alike)
        rank.archive->fail(fmt::format("its flat group {} does not fit that of rank 0, or its own state", i));
    }
  }
}

void DeepSpeedShards::find_trained() {
  FlatLengths lengths;
  for (const Optimizer& rank : optimizer_) {
    std::vector<int64_t>& own = lengths.emplace_back();
    for (const OptimizerStates::Flat& flat : rank.states.flats) own.push_back(numel_of(*flat.master));
  }
  try {
    if (stage_ == 3) {
      trained_ = layout_of_parts(model().groups, lengths);
    } else if (model().groups.size() != lengths[0].size()) {
      throw PickleError(fmt::format("it has {} groups of parameters, and its optimizer {}",
                                    model().groups.size(), lengths[0].size()));
    } else {
      trained_ = layout_of_groups(model().groups, lengths);
    }
  } catch (const PickleError& error) {
    fail_model(error.what());
  }
}

void DeepSpeedShards::open_whole() {
  std::shared_ptr<TorchArchive> archive = std::make_shared<TorchArchive>(models_[0].archive->path());
  // Its own view of the same file: values point into the archive that they are of.
  OptimizerStates states = read_whole_optimizer(*archive, read_model_states(*archive).optimizer);
  optimizer_.push_back({std::move(archive), std::move(states)});
  has_masters_ = std::any_of(optimizer()->flats.begin(), optimizer()->flats.end(),
                             [](const auto& flat) { return flat.master != nullptr; });
  name_whole();
}

void DeepSpeedShards::name_whole() {
  const OptimizerStates& states = *optimizer();
  NumberedShapes shapes;
  for (const OptimizerStates::Flat& flat : states.flats) {
    auto& shape = shapes.emplace_back();
    if (flat.master != nullptr) shape = flat.master->sizes;
    for (const auto& [name, tensor] : flat.fields) {
      if (shape && *shape != tensor->sizes)
        fail_model(fmt::format("its optimizer has a '{}' of another shape", name));
      shape = tensor->sizes;
    }
  }
  std::vector<std::vector<size_t>> groups;
  for (const auto& group : states.groups) groups.push_back(group.flats);
  const auto names = name_numbered(parameters_of(model()), groups, shapes);
  if (!names) return;  // told where they are asked for
  for (size_t i = 0; i < names->size(); ++i) {
    const std::vector<int64_t>& shape = model().find((*names)[i])->sizes;
    FlatParameter& made = trained_.emplace_back(FlatParameter{(*names)[i], shape, i, {}});
    made.segments.push_back({0, i, 0, ShapedName{"", shape}.numel()});
  }
}

at::Tensor DeepSpeedShards::gather(const FlatParameter& parameter, const std::string* field) const {
  at::Tensor result;
  int64_t done = 0;
  const auto tensor_at = [&](const FlatSegment& segment) {
    const OptimizerStates::Flat& flat = optimizer_[segment.rank].states.flats[segment.flat];
    return field == nullptr ? flat.master : flat.fields.at(*field);
  };
  for (const FlatSegment& segment : parameter.segments) {
    const TensorReference* from = tensor_at(segment);
    if (stage_ == 0) return optimizer_[0].archive->read(*from);  // with whatever strides
    if (!result.defined()) result = at::empty(parameter.shape, at::TensorOptions().dtype(from->dtype));
    optimizer_[segment.rank].archive->read(*from, segment.first,
                                           result.view(-1).narrow(0, done, segment.count));
    done += segment.count;
  }
  return result.defined() ? result : at::empty(parameter.shape, at::kFloat);
}

at::Tensor DeepSpeedShards::master(const FlatParameter& parameter) const {
  if (!has_masters_) return whole(*model().find(parameter.name));
  return gather(parameter, nullptr);
}

at::Tensor DeepSpeedShards::field(const FlatParameter& parameter, const std::string& field) const {
  return gather(parameter, &field);
}

at::Tensor DeepSpeedShards::frozen(const ShapedName& parameter) const {
  const int64_t numel = parameter.numel();
  at::Tensor result;
  int64_t done = 0;
  for (const Model& rank : models_) {
    const auto part = rank.states.frozen_parts.find(parameter.name);
    if (part == rank.states.frozen_parts.end()) {
      rank.archive->fail(fmt::format("it has no part of the frozen parameter '{}'", parameter.name));
    }
    const TensorReference& from = *part->second;
    rank.archive->check(from);
    if (!result.defined()) {
      if (numel > numel_of(from) * static_cast<int64_t>(models_.size())) {
        rank.archive->fail(
            fmt::format("its parts of the frozen parameter '{}' are too small", parameter.name));
      }
      result = at::empty(parameter.shape, at::TensorOptions().dtype(from.dtype));
    }
    const int64_t count = std::min(numel - done, numel_of(from));
    rank.archive->read(from, 0, result.view(-1).narrow(0, done, count));
    done += count;
  }
  if (done < numel) fail_model(fmt::format("parts of the frozen parameter '{}' are missing", parameter.name));
  return result;
}

}  // namespace lockstep::interop
