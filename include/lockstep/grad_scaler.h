#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace at {
class Tensor;
}

namespace lockstep {

class Communicator;

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // finite steps in a row after which the scale grows
  // Below this scale a warning says that it has collapsed: the loss scale is then no
  // help any more, and the cause is another one. 0: never.
  double collapse_scale = 1;
};

// Multiplies the loss so that small gradients survive float16, and skips the steps in
// which they overflow. Arithmetic, defaults and names of state are those of
// torch.amp.GradScaler.
//
//   scaler.scale(loss).backward();
//   if (scaler.unscale(sync.flat_gradients(), communicator)) {
//     sync.clip_grad_norm(1.0);
//     optimizer.step();
//   }
//   scaler.update();
//
// Between backwards of one accumulated step the scale does not change: unscale and
// update are called once, after the last. One thread at a time.
class GradScaler {
 public:
  // ConfigError names the option that makes no sense.
  explicit GradScaler(const GradScalerOptions& options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;

  // loss * scale, on the loss's device.
  at::Tensor scale(const at::Tensor& loss);

  // Divides the gradients by the scale in place and looks for values that are not
  // finite. Undefined tensors are passed over. True: finite on all ranks of the group,
  // take the step; false: skip it. Blocks until all ranks have answered. ConfigError:
  // float16 gradients (they belong to float32 parameters), or called twice before
  // update().
  bool unscale(const std::vector<at::Tensor>& gradients, const Communicator& communicator);
  // For one rank.
  bool unscale(const std::vector<at::Tensor>& gradients);

  // Adjusts the scale by what unscale() found, once a step. Counts a skipped step, and
  // warns when the scale has collapsed. ConfigError: no unscale() before it.
  void update();

  double current_scale() const;
  int64_t growth_tracker() const;  // finite steps since the scale last changed
  int64_t skipped_steps() const;   // in all
  int64_t consecutive_skips() const;
  // Whether the step of the last update() was skipped.
  bool last_step_skipped() const { return consecutive_skips() > 0; }
  const GradScalerOptions& options() const;

  // "scale", "growth_factor", "backoff_factor", "growth_interval" and "_growth_tracker"
  // as in Python, and the counts of skipped steps.
  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
