#include "train/parallel_model.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/model.h>
#include <lockstep/sharded_model.h>
#include <lockstep/train_config.h>
#include <lockstep/world.h>
#include <torch/torch.h>

#include "shard/memory_check.h"

namespace lockstep::train {
namespace {

std::optional<c10::ScalarType> autocast_dtype(const TrainConfig& config) {
  if (config.precision == "fp32") return std::nullopt;
  return config.precision == "bf16" ? at::kBFloat16 : at::kHalf;
}

// A model that does not fit whole is told so now, with the zero_stage that would do.
void require_room(const World& world, const Model& model, torch::optim::Optimizer& optimizer,
                  const TrainConfig& config) {
  ShardedOptions options;
  options.autocast_dtype = autocast_dtype(config);
  options.stage = 0;
  options.allow_untested_optimizer = true;
  shard::require_memory(*model.module(), optimizer, world.communicator(), options, /*masters=*/false);
}

class WholeModel final : public ParallelModel {
 public:
  WholeModel(const World& world, const Model& model, const TrainConfig& config)
      : sync_(model.module(), world.communicator(), options_of(config)) {}

  void prepare_forward() override { sync_.prepare_forward(); }
  bool prepare_evaluation() override {
    sync_.sync_buffers();
    return false;
  }
  void zero_grad() override { sync_.zero_grad(); }
  std::optional<GradientSync::NoSync> accumulate() override { return sync_.no_sync(); }
  std::vector<at::Tensor> flat_gradients() const override { return sync_.flat_gradients(); }
  void clip_grad_norm(double max_norm) override { sync_.clip_grad_norm(max_norm); }
  void update(torch::optim::Optimizer& optimizer) override { optimizer.step(); }
  std::chrono::nanoseconds exposed_wait() const override { return sync_.exposed_wait(); }

 private:
  static DataParallelOptions options_of(const TrainConfig& config) {
    DataParallelOptions options;
    options.find_unused_parameters = config.find_unused_parameters;
    return options;
  }

  GradientSync sync_;
};

OffloadDevice offload_device(const std::string& name) {
  if (name == "cpu") return OffloadDevice::kCpu;
  return name == "nvme" ? OffloadDevice::kNvme : OffloadDevice::kNone;
}

class DividedModel final : public ParallelModel {
 public:
  DividedModel(const World& world, const Model& model, torch::optim::Optimizer& optimizer,
               const TrainConfig& config)
      : optimizer_(optimizer),
        model_(model.module(), optimizer, world.communicator(), options_of(config, world.device())) {}

  void prepare_forward() override { model_.prepare_forward(); }
  bool prepare_evaluation() override {
    model_.prepare_evaluation();
    return model_.options().stage == 3;
  }
  void zero_grad() override { model_.zero_grad(); }
  std::optional<GradientSync::NoSync> accumulate() override {
    if (model_.options().stage >= 2) return std::nullopt;  // parts add up
    return model_.no_sync();
  }
  std::vector<at::Tensor> flat_gradients() const override { return model_.flat_gradients(); }
  void clip_grad_norm(double max_norm) override { model_.clip_grad_norm(max_norm); }
  void update(torch::optim::Optimizer& optimizer) override {
    if (&optimizer != &optimizer_) {
      throw ConfigError("train",
                        "zero_stage: the model was sharded with another optimizer: train with that one, or "
                        "set zero_stage to 0");
    }
    model_.step();
  }
  std::chrono::nanoseconds exposed_wait() const override { return model_.exposed_wait(); }
  ShardedModel* sharded() override { return &model_; }

 private:
  static ShardedOptions options_of(const TrainConfig& config, c10::Device device) {
    ShardedOptions options;
    options.stage = config.zero.stage;
    options.autocast_dtype = autocast_dtype(config);
    options.persistence_threshold = config.zero.persistence_threshold;
    options.find_unused_parameters = config.find_unused_parameters;
    options.overlap_gather = config.zero.overlap_gather;
    options.offload_optimizer.device = offload_device(config.zero.offload_optimizer);
    options.offload_optimizer.nvme_path = config.zero.nvme_path;
    options.offload_param.device = offload_device(config.zero.offload_param);
    // The model is still in host memory.
    if (options.offload_param.device != OffloadDevice::kNone) options.device = device;
    return options;
  }

  const torch::optim::Optimizer& optimizer_;
  ShardedModel model_;
};

}  // namespace

std::unique_ptr<ParallelModel> ParallelModel::make(const World& world, const Model& model,
                                                   torch::optim::Optimizer* optimizer,
                                                   const TrainConfig& config) {
  if (config.zero.stage == 0) {
    if (optimizer != nullptr) require_room(world, model, *optimizer, config);
    return std::make_unique<WholeModel>(world, model, config);
  }
  if (optimizer == nullptr) {
    throw ConfigError("train", fmt::format("zero_stage {} divides what gradients need, and there are none in "
                                           "training without gradients: set it to 0",
                                           config.zero.stage));
  }
  return std::make_unique<DividedModel>(world, model, *optimizer, config);
}

}  // namespace lockstep::train
