#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "interop/deepspeed/flat_layout.h"
#include "interop/deepspeed/folder.h"
#include "interop/deepspeed/model_states.h"
#include "interop/deepspeed/optimizer_states.h"
#include "interop/torch_archive.h"

namespace lockstep::interop {

// All files of one checkpoint of DeepSpeed's, open, and where each parameter is in them.
class DeepSpeedShards {
 public:
  // ConfigError: a file is missing, cannot be read, or is of another save than the rest.
  explicit DeepSpeedShards(const DeepSpeedFiles& files);

  int64_t stage() const { return stage_; }
  size_t ranks() const { return ranks_; }
  const ModelStates& model() const { return models_[0].states; }
  // Of rank 0; its groups and options are those of all. Null: there is none.
  const OptimizerStates* optimizer() const { return optimizer_.empty() ? nullptr : &optimizer_[0].states; }
  // All that the optimizer trains.
  const std::vector<FlatParameter>& trained() const { return trained_; }

  // ConfigError of the model's file, or of rank 0's of the optimizer.
  [[noreturn]] void fail_model(const std::string& reason) const { models_[0].archive->fail(reason); }
  [[noreturn]] void fail_optimizer(const std::string& reason) const { optimizer_[0].archive->fail(reason); }

  // The float32 weights of a trained parameter, and a field of its state.
  at::Tensor master(const FlatParameter& parameter) const;
  at::Tensor field(const FlatParameter& parameter, const std::string& field) const;
  // A tensor of the module as it is in the first file.
  at::Tensor whole(const TensorReference& tensor) const { return models_[0].archive->read(tensor); }
  bool has_masters() const { return has_masters_; }
  // A frozen parameter that is divided.
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

  void open_divided(const DeepSpeedFiles& files);
  void open_whole();
  void check_ranks(const DeepSpeedFiles& files) const;
  void check_flats() const;
  void find_trained();
  void name_whole();
  at::Tensor gather(const FlatParameter& parameter, const std::string* field) const;

  std::vector<Model> models_;
  std::vector<Optimizer> optimizer_;
  int64_t stage_ = 0;
  size_t ranks_ = 1;
  bool has_masters_ = false;
  std::vector<FlatParameter> trained_;
};

}  // namespace lockstep::interop
