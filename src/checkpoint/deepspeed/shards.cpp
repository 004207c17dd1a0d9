#include "checkpoint/deepspeed/shards.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <tuple>

#include "base/file.h"
#include "base/folder.h"
#include "checkpoint/pickle.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr char kLatestFile[] = "latest";
constexpr size_t kMaxTagBytes = 255;

[[noreturn]] void fail_import(const fs::path& path, const std::string& reason) {
  throw ConfigError("interop", fmt::format("cannot import '{}': {}", path.string(), reason));
}

bool has_states(const fs::path& folder) {
  std::error_code error;
  for (const base::FolderEntry& entry : base::list_folder(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.ends_with("_model_states.pt") || name.ends_with("optim_states.pt")) return true;
  }
  return false;
}

// A tag is the name of a folder beside `latest`; it must not lead to another place.
void check_tag(const fs::path& path, const std::string& tag, const std::string& whose) {
  const bool plain =
      !tag.empty() && tag.size() <= kMaxTagBytes && tag != "." && tag != ".." &&
      tag.find('/') == std::string::npos &&
      std::all_of(tag.begin(), tag.end(), [](unsigned char c) { return c >= ' ' && c != 127; });
  if (!plain) fail_import(path, fmt::format("{} is no name of a folder in it", whose));
}

std::string latest_tag(const fs::path& path) {
  const auto content = base::read_whole_file(path / kLatestFile, kMaxTagBytes + 2);
  if (!content) fail_import(path, "it has no file 'latest'. Name the checkpoint in it with --tag");
  std::string tag = *content;
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' ')) tag.pop_back();
  check_tag(path, tag, "the content of its file 'latest'");
  return tag;
}

fs::path checkpoint_folder(const fs::path& path, const std::string& tag) {
  if (!fs::is_directory(path)) fail_import(path, "there is no such folder");
  if (tag.empty() && has_states(path)) return path;
  const std::string name = tag.empty() ? latest_tag(path) : tag;
  check_tag(path, name, "--tag");
  if (!fs::is_directory(path / name)) {
    fail_import(path, fmt::format("there is no checkpoint '{}' in it{}", name,
                                  tag.empty() ? ", which its file 'latest' names" : ""));
  }
  return path / name;
}

std::string refusal(const std::string& name) {
  if (name.find("expert_") != std::string::npos || name.starts_with("expp_rank_")) {
    return "a mixture of experts, which is not read here";
  }
  if (name.starts_with("layer_")) return "pipeline parallel, which is not read here";
  return "";
}

// The files of one kind by rank.
using Ranks = std::map<int, fs::path>;

std::vector<fs::path> in_order(const fs::path& folder, const Ranks& ranks, const std::string& what) {
  std::vector<fs::path> files;
  for (const auto& [rank, file] : ranks) {
    if (rank != static_cast<int>(files.size())) {
      fail_import(folder, fmt::format("the {} of rank {} is missing: there are {} of at least {}", what,
                                      files.size(), ranks.size(), ranks.rbegin()->first + 1));
    }
    files.push_back(file);
  }
  return files;
}

// The patterns allow at most four digits.
int rank_of(const std::ssub_match& digits) { return std::stoi(digits.str()); }

int64_t numel_of(const TensorReference& tensor) { return c10::multiply_integers(tensor.sizes); }

// The parameters that the optimizer of a replicated model may have, in the order of the model: no
// buffers, and tied weights once.
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

bool is_deepspeed_folder(const fs::path& path) {
  if (!fs::is_directory(path)) return false;
  if (has_states(path)) return true;
  if (!fs::is_regular_file(path / kLatestFile)) return false;
  std::error_code error;
  for (const base::FolderEntry& entry : base::list_folder(path, error)) {
    if (entry.is_folder() && has_states(entry.path())) return true;
  }
  return fs::exists(path / "zero_to_fp32.py");
}

DeepSpeedFiles find_deepspeed_files(const fs::path& path, const std::string& tag) {
  static const std::regex kModel("mp_rank_(\\d{2,4})_model_states\\.pt");
  static const std::regex kModelPart("zero_pp_rank_(\\d{1,4})_mp_rank_(\\d{2,4})_model_states\\.pt");
  static const std::regex kOptimizer(
      "(bf16_|fp16_)?zero_pp_rank_(\\d{1,4})_mp_rank_(\\d{2,4})_?optim_states\\.pt");
  DeepSpeedFiles files;
  files.folder = checkpoint_folder(path, tag);
  Ranks whole;
  Ranks parts;
  Ranks optimizer;
  std::optional<std::string> prefix;
  const auto add = [&](Ranks& ranks, int rank, int model_rank, const fs::path& file) {
    if (model_rank > 0) {
      fail_import(files.folder,
                  fmt::format("'{}' is of a model that is sharded over ranks (model or tensor parallel), "
                              "which is not read here",
                              file.filename().string()));
    }
    ranks.emplace(rank, file);
  };
  std::error_code error;
  const std::vector<base::FolderEntry> entries = base::list_folder(files.folder, error);
  if (error) fail_import(files.folder, error.message());
  for (const base::FolderEntry& entry : entries) {
    const std::string name = entry.path().filename();
    if (const std::string reason = refusal(name); !reason.empty()) {
      fail_import(files.folder, fmt::format("'{}' is of a {}", name, reason));
    }
    std::smatch match;
    if (std::regex_match(name, match, kModel)) {
      add(whole, 0, rank_of(match[1]), entry.path());
    } else if (std::regex_match(name, match, kModelPart)) {
      add(parts, rank_of(match[1]), rank_of(match[2]), entry.path());
    } else if (std::regex_match(name, match, kOptimizer)) {
      add(optimizer, rank_of(match[2]), rank_of(match[3]), entry.path());
      if (prefix && *prefix != match[1].str()) {
        fail_import(files.folder,
                    fmt::format("its optimizer files are of two trainings, as '{}' and '{}' ones", *prefix,
                                match[1].str()));
      }
      prefix = match[1].str();
    }
  }
  if (whole.empty() && parts.empty()) {
    fail_import(files.folder,
                "it has no file 'mp_rank_00_model_states.pt' or 'zero_pp_rank_0_mp_rank_00_model_states.pt'");
  }
  // Some replicated models have both: then the file of the replicated model has everything.
  files.model = in_order(files.folder, whole.empty() ? parts : whole, "model file");
  files.optimizer = in_order(files.folder, optimizer, "optimizer file");
  return files;
}

DeepSpeedShards::DeepSpeedShards(const DeepSpeedFiles& files) {
  for (const auto& path : files.model) {
    auto archive = std::make_unique<TorchArchive>(path);
    ModelStates states = read_model_states(*archive);
    models_.push_back({std::move(archive), std::move(states)});
  }
  if (!files.optimizer.empty()) {
    open_sharded(files);
  } else if (!model().groups.empty()) {
    fail_model(
        "its optimizer is sharded, and there is no file of it ('zero_pp_rank_0_mp_rank_00_optim_states.pt') "
        "beside it");
  } else if (models_.size() > 1) {
    fail_model("its model is sharded, and there is no file of the optimizer beside it");
  } else if (model().optimizer != nullptr) {
    open_replicated();
  }
}

void DeepSpeedShards::open_sharded(const DeepSpeedFiles& files) {
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
  const bool is_sharded = first.stage == 3;
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
  if (models_.size() != (is_sharded ? optimizer_.size() : 1)) {
    fail_model(fmt::format("there are {} files of the model and {} of the optimizer, of stage {}",
                           models_.size(), optimizer_.size(), first.stage));
  }
}

// The flat groups of all ranks must have equal dtypes, and a state must not be shorter than its weights.
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
      trained_ = layout_of_stage_3(model().groups, lengths);
    } else if (model().groups.size() != lengths[0].size()) {
      throw PickleError(fmt::format("it has {} groups of parameters, and its optimizer {}",
                                    model().groups.size(), lengths[0].size()));
    } else {
      trained_ = layout_of_stage_1_and_2(model().groups, lengths);
    }
  } catch (const PickleError& error) {
    fail_model(error.what());
  }
}

void DeepSpeedShards::open_replicated() {
  std::shared_ptr<TorchArchive> archive = std::make_shared<TorchArchive>(models_[0].archive->path());
  // A second archive of the same file: the states point into the archive that they were read from.
  OptimizerStates states = read_replicated_optimizer(*archive, read_model_states(*archive).optimizer);
  optimizer_.push_back({std::move(archive), std::move(states)});
  has_masters_ = std::any_of(optimizer()->flats.begin(), optimizer()->flats.end(),
                             [](const auto& flat) { return flat.master != nullptr; });
  name_numbered_parameters();
}

void DeepSpeedShards::name_numbered_parameters() {
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
  if (!names) return;  // an error only if the optimizer is imported
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
    if (stage_ == 0) return optimizer_[0].archive->read(*from);  // may have any strides
    if (!result.defined()) result = at::empty(parameter.shape, at::TensorOptions().dtype(from->dtype));
    optimizer_[segment.rank].archive->read(*from, segment.first,
                                           result.view(-1).narrow(0, done, segment.count));
    done += segment.count;
  }
  return result.defined() ? result : at::empty(parameter.shape, at::kFloat);
}

at::Tensor DeepSpeedShards::master(const FlatParameter& parameter) const {
  if (!has_masters_) return module_tensor(*model().find(parameter.name));
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

}  // namespace lockstep::checkpoint
