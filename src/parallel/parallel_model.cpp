#include "parallel/parallel_model.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include "parallel/gradient_norm.h"
#include "parallel/zero_plan.h"

namespace lockstep::parallel {
namespace {

class ReplicatedModel final : public ParallelModel {
 public:
  ReplicatedModel(std::shared_ptr<torch::nn::Module> module, const Communicator& communicator,
                  const ParallelOptions& options)
      : module_(std::move(module)), sync_(module_, communicator, options_of(options)) {}

  void prepare_forward() override { sync_.prepare_forward(); }
  bool prepare_evaluation() override {
    sync_.sync_buffers();
    return false;
  }
  void zero_grad() override { sync_.zero_grad(); }
  GradientSync::NoSync no_sync() override { return sync_.no_sync(); }
  std::vector<at::Tensor> flat_gradients() const override { return sync_.flat_gradients(); }
  at::Tensor grad_norm() const override { return total_norm(sync_.flat_gradients(), 2, at::kFloat); }
  void clip_grad_norm(double max_norm) override { sync_.clip_grad_norm(max_norm); }
  void update(torch::optim::Optimizer& optimizer, const at::Tensor& factor) override {
    if (factor.defined()) {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& flat : sync_.flat_gradients()) flat.mul_(factor.to(flat.device()));
    }
    optimizer.step();
  }

  std::chrono::nanoseconds exposed_wait() const override { return sync_.exposed_wait(); }
  std::shared_ptr<void> gather_parameters() override { return nullptr; }
  std::optional<ShardedModel::Memory> memory() const override { return std::nullopt; }
  ShardedModel* sharded() override { return nullptr; }

  void add_weights_to(checkpoint::Snapshot& snapshot) const override {
    if (sync_.communicator().rank() == 0) add_weights(snapshot, *module_);
  }
  void add_to(checkpoint::Snapshot& snapshot, const torch::optim::Optimizer& optimizer) const override {
    if (sync_.communicator().rank() != 0) return;
    add_weights(snapshot, *module_);
    add_optimizer(snapshot, *module_, optimizer);
  }
  void restore_weights(const checkpoint::Reader& reader) override {
    parallel::restore_weights(reader, *module_);
  }
  void restore_optimizer(const checkpoint::Reader& reader, torch::optim::Optimizer& optimizer) override {
    parallel::restore_optimizer(reader, *module_, optimizer);
  }

 private:
  static DataParallelOptions options_of(const ParallelOptions& options) {
    DataParallelOptions result = options.replicated;
    result.find_unused_parameters = options.sharding.find_unused_parameters;
    result.broadcast_buffers = options.sharding.broadcast_buffers;
    return result;
  }

  const std::shared_ptr<torch::nn::Module> module_;
  GradientSync sync_;
};

class ShardedParallelModel final : public ParallelModel {
 public:
  ShardedParallelModel(std::shared_ptr<torch::nn::Module> module, torch::optim::Optimizer& optimizer,
                       const Communicator& communicator, const ShardedOptions& options)
      : module_(std::move(module)),
        optimizer_(optimizer),
        model_(module_, optimizer, communicator, options) {}

  void prepare_forward() override { model_.prepare_forward(); }
  bool prepare_evaluation() override {
    model_.prepare_evaluation();
    return model_.options().zero.stage == 3;
  }
  void zero_grad() override { model_.zero_grad(); }
  GradientSync::NoSync no_sync() override { return model_.no_sync(); }
  std::optional<GradientSync::NoSync> accumulate() override {
    if (model_.options().zero.stage >= 2) return std::nullopt;  // shards are summed
    return no_sync();
  }
  std::vector<at::Tensor> flat_gradients() const override { return model_.flat_gradients(); }
  at::Tensor grad_norm() const override { return model_.grad_norm(); }
  void clip_grad_norm(double max_norm) override { model_.clip_grad_norm(max_norm); }
  void update(torch::optim::Optimizer& optimizer, const at::Tensor& factor) override {
    if (&optimizer != &optimizer_) {
      throw ConfigError("train",
                        "zero_stage: the model was sharded with another optimizer: train with that one, or "
                        "set zero_stage to 0");
    }
    model_.step(factor);
  }

  std::chrono::nanoseconds exposed_wait() const override { return model_.exposed_wait(); }
  std::shared_ptr<void> gather_parameters() override {
    return std::make_shared<ShardedModel::Gathered>(model_.gather_parameters());
  }
  std::optional<ShardedModel::Memory> memory() const override { return model_.memory(); }
  ShardedModel* sharded() override { return &model_; }

  void add_weights_to(checkpoint::Snapshot& snapshot) const override {
    add_weight_shards(snapshot, *module_, model_, model_.communicator().rank() == 0);
  }
  void add_to(checkpoint::Snapshot& snapshot, const torch::optim::Optimizer&) const override {
    add_shards(snapshot, *module_, model_, model_.communicator().rank() == 0);
  }
  void restore_weights(const checkpoint::Reader& reader) override {
    restore_weight_shards(reader, *module_, model_);
  }
  void restore_optimizer(const checkpoint::Reader& reader, torch::optim::Optimizer&) override {
    restore_optimizer_shards(reader, model_);
  }

 private:
  const std::shared_ptr<torch::nn::Module> module_;
  const torch::optim::Optimizer& optimizer_;
  ShardedModel model_;
};

// A model that does not fit when it is replicated fails now, with the stage that would fit.
void require_replicated_memory(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                               const Communicator& communicator, ShardedOptions options) {
  options.allow_untested_optimizer = true;
  require_memory(module, optimizer, communicator, options, /*masters=*/false);
}

}  // namespace

std::unique_ptr<ParallelModel> ParallelModel::make(std::shared_ptr<torch::nn::Module> module,
                                                   torch::optim::Optimizer* optimizer,
                                                   const Communicator& communicator,
                                                   const ParallelOptions& options) {
  const int stage = options.sharding.zero.stage;
  if (stage == 0 && options.stage_zero == StageZero::kReplicate) {
    if (optimizer != nullptr) require_replicated_memory(*module, *optimizer, communicator, options.sharding);
    return std::make_unique<ReplicatedModel>(std::move(module), communicator, options);
  }
  if (optimizer == nullptr) {
    throw ConfigError("train", fmt::format("zero_stage {} shards what gradients need, and there are none in "
                                           "training without gradients: set it to 0",
                                           stage));
  }
  return std::make_unique<ShardedParallelModel>(std::move(module), *optimizer, communicator,
                                                options.sharding);
}

}  // namespace lockstep::parallel
