#pragma once

#include <lockstep/deepspeed.h>
#include <lockstep/optim.h>
#include <lockstep/schedule.h>

#include <lockstep/json.h>

#include <functional>

#include "parallel/parallel_model.h"
#include "train/deepspeed/engine_report.h"

namespace lockstep {

namespace deepspeed {
inline constexpr auto kSection = "engine";  // of a checkpoint's metadata
}

struct EngineCore::Impl {
  Impl(std::shared_ptr<torch::nn::Module> module, DeepSpeedConfig config, Communicator communicator,
       torch::optim::Optimizer* own_optimizer, std::optional<c10::Device> wanted_device, int local_rank);

  void meet_batch(int64_t batch_size);
  void update();
  // The factor of the gradients; undefined: 1. nullopt: the step is to be skipped.
  std::optional<at::Tensor> gradient_factor();
  void report_step();
  double step_loss() const;
  // Resets counters and schedule and clears the gradients. Weights, the optimizer's state and the loss
  // scale stay.
  void restart();
  // Counters, loss scale and schedule, for a checkpoint. `step` is for a checkpoint that has none of
  // them.
  Json state() const;
  void load_state(const Json& state, int64_t step, bool with_schedule);

  const DeepSpeedConfig config;
  const Communicator communicator;
  const std::shared_ptr<torch::nn::Module> module;
  const c10::Device device;
  const int local_rank;
  const std::optional<c10::ScalarType> autocast;
  std::unique_ptr<torch::optim::Optimizer> made_optimizer;  // made by the configuration
  torch::optim::Optimizer* optimizer;
  std::unique_ptr<parallel::ParallelModel> model;
  std::optional<ScheduledLearningRate> schedule;
  std::optional<GradScaler> scaler;  // if a step may be skipped
  bool scales_loss = false;          // not with bf16, whose scale is always 1
  deepspeed::EngineReport report;

  DeepSpeedConfig::BatchTriple batch;  // sizes are 0 while they are unknown
  bool batch_was_seen = false;

  int64_t micro_steps = 0;
  int64_t global_steps = 0;
  int64_t global_samples = 0;
  int64_t backwards = 0;  // since the last update
  bool reduced = false;   // whether the last of them reduced all gradients
  int no_syncs = 0;       // open scopes
  bool step_applied = false;
  at::Tensor norm;  // of the last step, times norm_scale
  double norm_scale = 1;
  at::Tensor loss_sum;  // of this step, if monitors write it
  // Called before an update, with the factor of its gradients (undefined: 1). The gradients are cleared
  // after the update.
  std::function<void(const at::Tensor& factor)> before_step;
};

}  // namespace lockstep
