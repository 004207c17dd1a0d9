#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/data.h>
#include <lockstep/optim.h>
#include <lockstep/trainer.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/progress.h"
#include "base/trace.h"
#include "parallel/parallel_model.h"
#include "train/batch_source.h"
#include "train/gradient_statistics.h"

namespace lockstep::checkpoint {
class Reader;
struct Snapshot;
}  // namespace lockstep::checkpoint

namespace lockstep::train {

// Splits the time of training into phases, and reports the phase to the launcher that watches this
// process. On a GPU, which computes asynchronously, these are the times of the host. Entering a phase
// reads the clock once.
class StepClock {
 public:
  using Clock = std::chrono::steady_clock;

  void enter(base::Phase phase) {
    const Clock::time_point now = Clock::now();
    base::Trace::of_process().add("phase", base::to_string(phase_), since_);
    spent_[static_cast<size_t>(phase_)] += now - since_;
    since_ = now;
    phase_ = phase;
    base::Progress::of_process().set_phase(phase);
  }

  // Seconds since the last take().
  struct Split {
    double data_s = 0;
    double forward_s = 0;
    double backward_s = 0;
    double optimizer_s = 0;
  };
  Split take() {
    enter(phase_);
    const auto seconds = [this](base::Phase phase) {
      return std::chrono::duration<double>(spent_[static_cast<size_t>(phase)]).count();
    };
    const Split split{seconds(base::Phase::kData), seconds(base::Phase::kForward),
                      seconds(base::Phase::kBackward), seconds(base::Phase::kOptimizer)};
    spent_.fill({});
    return split;
  }

 private:
  std::array<Clock::duration, 7> spent_{};
  Clock::time_point since_ = Clock::now();
  base::Phase phase_ = base::Phase::kRunning;
};

// The batches of one step, as the loader made them. Each is copied to the device when the step asks for
// it, and freed when the step asks for another one: with many accumulated batches the device holds one,
// and the next one while the first is still computed.
class StepBatches {
 public:
  // `copy` must outlive it.
  explicit StepBatches(DeviceCopy& copy, std::vector<Batch> batches = {})
      : copy_(&copy), batches_(std::move(batches)) {}

  void clear() {
    batches_.clear();
    current_.reset();
  }
  void add(Batch batch) { batches_.push_back(std::move(batch)); }

  bool empty() const { return batches_.empty(); }
  size_t size() const { return batches_.size(); }
  int64_t samples() const {
    int64_t samples = 0;
    for (const Batch& batch : batches_) samples += batch.size();
    return samples;
  }
  int64_t samples_of(size_t index) const { return batches_[index].size(); }

  // Valid until another batch is requested.
  const Batch& on_device(size_t index) {
    if (!current_ || current_->first != index) {
      current_.reset();  // before the next one takes memory
      current_.emplace(index, (*copy_)(batches_[index]));
    }
    return current_->second;
  }

  // All at once, for steps that use each batch several times.
  std::vector<Batch> all_on_device() {
    std::vector<Batch> all;
    for (size_t i = 0; i < batches_.size(); ++i) all.push_back(on_device(i));
    return all;
  }
  // The same copy with other batches, which may already be on the device.
  StepBatches with(std::vector<Batch> batches) const { return StepBatches(*copy_, std::move(batches)); }

  // Sizes, strides and dtypes of all tensors: equal for batches that differ only in their values.
  std::vector<int64_t> kind() const;

 private:
  DeviceCopy* copy_;
  std::vector<Batch> batches_;
  std::optional<std::pair<size_t, Batch>> current_;  // the batch on the device, and its index
};

// total += part * weight, over the loss and all metrics; counts are added without the weight.
void add_weighted(LossResult& total, const LossResult& part, double weight);

// What the steps of one trainer share. The references outlive the steps.
struct StepParts {
  const World& world;
  const Model& model;
  const Loss& loss;
  const TrainConfig& config;
  StepClock& clock;
  std::unique_ptr<parallel::ParallelModel> parallel = {};  // null: the step has its own
  std::optional<GradScaler> scaler = {};                   // if precision is fp16
  OptimizeStep custom = {};                                // from Trainer::set_optimize_step()
};

// Changes the weights of a model: by gradients (gradient_step.h), by a DeepSpeed configuration
// (deepspeed/engine_step.h) or by search (search_step.h). Fit loop, evaluation and checkpoints know
// only this interface. A new kind has its own source and one line in make_step() of trainer.cpp.
//
// Collective: all ranks make the same calls, on one thread.
class Step {
 public:
  // `parts` must outlive the step.
  explicit Step(StepParts& parts) : parts_(parts) {}
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  virtual ~Step() = default;

  // --- one step

  // Changes the weights by the batches. Returns the mean of their losses and metrics. ConfigError: the
  // forward fails on a batch; the error describes the batch.
  virtual LossResult run(StepBatches& batches) = 0;
  // Whether the last run() changed the weights. False: it was skipped because of an overflow, and the
  // host knows it.
  virtual bool changed_weights() const { return true; }
  // Only the forward, in the configured precision.
  LossResult forward(const Batch& batch) const;

  // --- what the fit loop asks

  // Called before a training. ConfigError: this kind of step cannot train with the configuration, or
  // with so few batches in an epoch.
  virtual void check_fit(int64_t batches_per_epoch) const { static_cast<void>(batches_per_epoch); }
  // Called when a training begins: counts and schedules start again, and the optimizer's state may be
  // loaded after this call.
  virtual void begin_fit() {}
  // True: run() needs config.accumulate_steps batches; fewer batches at the end of an epoch are not
  // used.
  virtual bool takes_full_windows() const { return false; }
  // True: all ranks use the same samples, and share other work.
  virtual bool shares_samples() const { return false; }
  // Called for each loss. Returns whether training continues. Throws if a scaler has skipped so many
  // steps that training cannot continue.
  virtual bool accepts_loss(double loss);
  // True: a step that overflows is skipped, and loss_scale() and skipped_steps() are reported.
  virtual bool may_skip() const { return false; }
  virtual int64_t skipped_steps() const { return 0; }
  // The loss scale of the next step.
  virtual double loss_scale() const { return 1; }
  // Null: this step uses no gradients.
  virtual torch::optim::Optimizer* optimizer() const { return nullptr; }
  // ConfigError: the trainer's optimizer cannot be replaced by another one; the error says why.
  virtual void check_replaceable() const {}

  // Announces that gradient_statistics() will be called after the next run(), with the same argument.
  virtual void watch_gradients(bool with_values) { static_cast<void>(with_values); }
  // Announces that gradient_norm() will be called after the next run().
  virtual void watch_gradient_norm() {}
  // The norm of all gradients of the last run(), unscaled and before clipping (with cuda_graph after it), a
  // scalar on any device. Undefined: there are no gradients. Collective.
  virtual at::Tensor gradient_norm() { return {}; }
  // Statistics of the gradients that the last run() used, on rank 0; empty elsewhere.
  virtual std::vector<GradientStatistics> gradient_statistics(bool with_values);

  // --- the model on its ranks

  virtual parallel::ParallelModel& parallel() const { return *parts_.parallel; }
  // Null: the model is replicated.
  ShardedModel* sharded() const;
  // Call it before parameters are read: waits for updates that are still being gathered.
  void finish_update() const;
  // Call it before the optimizer's state is read: copies counts that only the device has into the
  // state. Waits for the device.
  virtual void finish_state() { finish_update(); }

  // --- checkpoints

  // Adds this rank's weights, optimizer state and everything else that the step needs to resume; rank 0
  // adds what is not sharded.
  virtual void add_to(checkpoint::Snapshot& snapshot) const = 0;
  // ConfigError: another model, and what differs.
  void restore_weights(const checkpoint::Reader& reader);
  // Restores everything except the weights. ConfigError: the checkpoint has another optimizer, or none.
  void restore_state(const checkpoint::Reader& reader);

 protected:
  // Restores what add_to() adds besides the weights and the optimizer's state.
  virtual void restore_rest(const checkpoint::Reader& reader) = 0;

  const World& world() const { return parts_.world; }
  const TrainConfig& config() const { return parts_.config; }
  StepClock& clock() const { return parts_.clock; }

  StepParts& parts_;
};

}  // namespace lockstep::train
