#pragma once

#include <lockstep/json.h>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace at {
class Tensor;
}

namespace lockstep {

class Communicator;

// DeepSpeed's way of moving the scale, with its names and defaults (`fp16` of its
// configuration).
struct DeepSpeedScaleOptions {
  int64_t initial_scale_power = 16;     // the scale begins at 2 to this
  int64_t loss_scale_window = 1000;     // finite steps in a row after which the scale doubles
  int64_t hysteresis = 2;               // the overflow that halves it: the second
  bool consecutive_hysteresis = false;  // a finite step gives the hysteresis back; else a window does
  double min_loss_scale = 1;            // an overflow there is an error
};

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // finite steps in a row after which the scale grows
  // DeepSpeed's rules instead of torch.amp's: the four options above then do not count.
  std::optional<DeepSpeedScaleOptions> deepspeed = {};
  // Off: the scale stays init_scale, and steps that overflow are still skipped.
  bool dynamic = true;
  // Below this scale a warning says that it has collapsed: the loss scale is then no
  // help any more, and the cause is another one. 0: never.
  double collapse_scale = 1;
  // Skipped steps in a row after which check_progress() gives up.
  int64_t max_consecutive_skips = 100;
};

// Multiplies the loss so that small gradients survive float16, and skips the steps in
// which they overflow. Arithmetic, defaults and names of state are those of
// torch.amp.GradScaler, or by choice DeepSpeed's.
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

  // The same without waiting for the device: one number there, not 0 where the step is to
  // be skipped. For kernels that look at it themselves, and for steps that are recorded.
  at::Tensor unscale_on_device(const std::vector<at::Tensor>& gradients, const Communicator& communicator);

  // In place of unscale(), for who finds an overflow and unscales in a pass of his own: what
  // was found, the same on all ranks. Asks nobody.
  void note_overflow(bool overflow, const Communicator& communicator);

  // Adjusts the scale by what unscale() found, once a step. Counts a skipped step, and
  // warns when the scale has collapsed; after unscale_on_device() that happens when the
  // counts are next asked for. DeepSpeed's rules are arithmetic of the host: with them it
  // waits for the device. ConfigError: no unscale() before it, or by DeepSpeed's rules an
  // overflow at the minimum, on all ranks alike.
  void update();
  // ConfigError: so many steps were skipped in a row that no scale will help any more.
  void check_progress() const;

  // These wait for the device where the scale is.
  double current_scale() const;
  int64_t growth_tracker() const;  // finite steps since the scale last changed
  int64_t skipped_steps() const;   // in all
  int64_t consecutive_skips() const;
  // Whether the step of the last update() was skipped.
  bool last_step_skipped() const { return consecutive_skips() > 0; }
  const GradScalerOptions& options() const;

  // "scale", "growth_factor", "backoff_factor", "growth_interval" and "_growth_tracker"
  // as in Python, and the counts of skipped steps; "deepspeed": what its rules remember.
  Json state() const;
  void load_state(const Json& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
