#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/deepspeed/parameter_layout.h"
#include "checkpoint/deepspeed/states.h"
#include "checkpoint/torch_archive.h"

namespace lockstep::checkpoint {

// The files of one checkpoint of DeepSpeed, by rank.
struct DeepSpeedFiles {
  std::filesystem::path folder;
  // "mp_rank_00_model_states.pt"; at stage 3 one file of each rank.
  std::vector<std::filesystem::path> model;
  // One of each rank; none at stage 0.
  std::vector<std::filesystem::path> optimizer;
};

// Whether this looks like the folder of DeepSpeed's save_checkpoint, or like a checkpoint in it.
bool is_deepspeed_folder(const std::filesystem::path& path);

// `path`: the folder of save_checkpoint, or a checkpoint in it. `tag`: which checkpoint; empty: the one
// that the file `latest` names. ConfigError: a file is missing, or belongs to a kind of training that is
// not supported (model parallel, pipeline, mixture of experts). Opens no file except `latest`.
DeepSpeedFiles find_deepspeed_files(const std::filesystem::path& path, const std::string& tag);

// The open files of one checkpoint of DeepSpeed, and the place of each parameter in them.
class DeepSpeedShards {
 public:
  // ConfigError: a file is missing, cannot be read, or is from another save than the others.
  explicit DeepSpeedShards(const DeepSpeedFiles& files);

  int64_t stage() const { return stage_; }
  size_t ranks() const { return ranks_; }
  const ModelStates& model() const { return models_[0].states; }
  // Of rank 0; the groups and options are the same on all ranks. Null: there is none.
  const OptimizerStates* optimizer() const { return optimizer_.empty() ? nullptr : &optimizer_[0].states; }
  // The parameters of the optimizer.
  const std::vector<FlatParameter>& trained() const { return trained_; }

  // Throw ConfigError for the model's file, or for the optimizer's file of rank 0.
  [[noreturn]] void fail_model(const std::string& reason) const { models_[0].archive->fail(reason); }
  [[noreturn]] void fail_optimizer(const std::string& reason) const { optimizer_[0].archive->fail(reason); }

  // The float32 weights of a trained parameter, and a field of its state.
  at::Tensor master(const FlatParameter& parameter) const;
  at::Tensor field(const FlatParameter& parameter, const std::string& field) const;
  // A tensor of the module as it is in the first file.
  at::Tensor module_tensor(const TensorReference& tensor) const { return models_[0].archive->read(tensor); }
  bool has_masters() const { return has_masters_; }
  // A frozen parameter, gathered from its shards.
  at::Tensor frozen(const ShapedName& parameter) const;

 private:
  struct Model {
    std::unique_ptr<TorchArchive> archive;
    ModelStates states;
  };
  struct Optimizer {
    std::shared_ptr<TorchArchive> archive;
    OptimizerStates states;
  };

  void open_sharded(const DeepSpeedFiles& files);
  void open_replicated();
  void check_ranks(const DeepSpeedFiles& files) const;
  void check_flats() const;
  void find_trained();
  void name_numbered_parameters();
  at::Tensor gather(const FlatParameter& parameter, const std::string* field) const;

  std::vector<Model> models_;
  std::vector<Optimizer> optimizer_;
  int64_t stage_ = 0;
  size_t ranks_ = 1;
  bool has_masters_ = false;
  std::vector<FlatParameter> trained_;
};

}  // namespace lockstep::checkpoint
