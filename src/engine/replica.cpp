#include "engine/replica.h"

#include <lockstep/optimizer_state.h>
#include <torch/torch.h>

#include "engine/sharded_snapshot.h"
#include "engine/whole_snapshot.h"
#include "grad/gradient_norm.h"

namespace lockstep::engine {
namespace {

class DividedReplica final : public Replica {
 public:
  DividedReplica(std::shared_ptr<torch::nn::Module> module, torch::optim::Optimizer& optimizer,
                 const Communicator& communicator, const ShardedOptions& options)
      : module_(std::move(module)), model_(module_, optimizer, communicator, options) {}

  void prepare_forward() override { model_.prepare_forward(); }
  bool prepare_evaluation() override {
    model_.prepare_evaluation();
    return model_.options().stage == 3;
  }
  void zero_grad() override { model_.zero_grad(); }
  GradientSync::NoSync no_sync() override { return model_.no_sync(); }
  bool adds_reduced_gradients() const override { return model_.options().stage >= 2; }
  at::Tensor grad_norm() const override { return model_.grad_norm(); }
  void step(const at::Tensor& factor) override { model_.step(factor); }
  std::chrono::nanoseconds exposed_wait() const override { return model_.exposed_wait(); }
  std::shared_ptr<void> gather_parameters() override {
    return std::make_shared<ShardedModel::Gathered>(model_.gather_parameters());
  }
  std::optional<ShardedModel::Memory> memory() const override { return model_.memory(); }
  ShardedModel* sharded() override { return &model_; }

  void add_to(checkpoint::Snapshot& snapshot) const override {
    add_parts(snapshot, *module_, model_, model_.communicator().rank() == 0);
  }
  void restore_weights(const checkpoint::Reader& reader) override {
    restore_weight_parts(reader, *module_, model_);
  }
  void restore_optimizer(const checkpoint::Reader& reader) override {
    restore_optimizer_parts(reader, model_);
  }

 private:
  const std::shared_ptr<torch::nn::Module> module_;
  ShardedModel model_;
};

class WholeReplica final : public Replica {
 public:
  WholeReplica(std::shared_ptr<torch::nn::Module> module, torch::optim::Optimizer& optimizer,
               const Communicator& communicator, const ShardedOptions& options)
      : module_(std::move(module)),
        optimizer_(optimizer),
        sync_(module_, communicator, options_of(options)) {}

  void prepare_forward() override { sync_.prepare_forward(); }
  bool prepare_evaluation() override {
    sync_.sync_buffers();
    return false;
  }
  void zero_grad() override { sync_.zero_grad(); }
  GradientSync::NoSync no_sync() override { return sync_.no_sync(); }
  bool adds_reduced_gradients() const override { return false; }
  at::Tensor grad_norm() const override { return grad::total_norm(sync_.flat_gradients(), 2, at::kFloat); }
  void step(const at::Tensor& factor) override {
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& flat : sync_.flat_gradients()) {
      if (factor.defined()) flat.mul_(factor.to(flat.device()));
    }
    optimizer_.step();
  }
  std::chrono::nanoseconds exposed_wait() const override { return sync_.exposed_wait(); }
  std::shared_ptr<void> gather_parameters() override { return nullptr; }
  std::optional<ShardedModel::Memory> memory() const override { return std::nullopt; }
  ShardedModel* sharded() override { return nullptr; }

  void add_to(checkpoint::Snapshot& snapshot) const override {
    if (sync_.communicator().rank() != 0) return;
    add_weights(snapshot, *module_);
    add_optimizer(snapshot, *module_, optimizer_);
  }
  void restore_weights(const checkpoint::Reader& reader) override {
    engine::restore_weights(reader, *module_);
  }
  void restore_optimizer(const checkpoint::Reader& reader) override {
    engine::restore_optimizer(reader, *module_, optimizer_);
  }

 private:
  static DataParallelOptions options_of(const ShardedOptions& options) {
    DataParallelOptions result;
    result.find_unused_parameters = options.find_unused_parameters;
    result.broadcast_buffers = options.broadcast_buffers;
    result.bucket_cap_bytes = options.bucket_cap_bytes;
    return result;
  }

  const std::shared_ptr<torch::nn::Module> module_;
  torch::optim::Optimizer& optimizer_;
  GradientSync sync_;
};

}  // namespace

std::unique_ptr<Replica> Replica::make(std::shared_ptr<torch::nn::Module> module,
                                       torch::optim::Optimizer& optimizer, const Communicator& communicator,
                                       const ShardedOptions& options) {
  if (options.stage == 0 && optimizer_class(optimizer) == "Lamb") {
    return std::make_unique<WholeReplica>(std::move(module), optimizer, communicator, options);
  }
  return std::make_unique<DividedReplica>(std::move(module), optimizer, communicator, options);
}

}  // namespace lockstep::engine
