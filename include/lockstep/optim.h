#pragma once

// Optimizers that LibTorch lacks, and what goes with an optimizer: loss scaling for fp16, averages of
// weights, and saving its state under Python's names.
//
//   auto optimizer = lockstep::make_adadelta(model->parameters(), {.lr = 1.0});
//   optimizer->step();

#include <lockstep/json.h>
#include <lockstep/weights.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace at {
class Tensor;
}
namespace torch::optim {
class Optimizer;
}

namespace torch::nn {
class Module;
}

namespace lockstep {

// Defaults as in torch.optim.Adadelta.
struct AdadeltaOptions {
  double lr = 1.0;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
};

// torch.optim.Adadelta, which LibTorch lacks, with one parameter group and the same bits.
// optimizer_state() saves and loads it. ConfigError names the option that makes no sense.
std::unique_ptr<torch::optim::Optimizer> make_adadelta(const std::vector<at::Tensor>& parameters,
                                                       const AdadeltaOptions& options = {});

// Defaults as in perceptrain.
struct AdamLbfgsOptions {
  int64_t switch_step = 10000;  // steps with Adam; the next ones are LBFGS's
  double adam_lr = 1e-2;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double lbfgs_lr = 1;
  int64_t lbfgs_max_iter = 20;
  int64_t lbfgs_history_size = 100;
  bool strong_wolfe = false;  // LBFGS's line search
};

// Adam first, LBFGS from step switch_step on: an optimizer like any other, with one
// parameter group. Its learning rate is Adam's; LBFGS runs with lbfgs_lr times the same
// ratio to adam_lr, so that a schedule works across the switch.
// optimizer_state() saves and loads it. After the switch step() without closure is a
// ConfigError. ConfigError here names the option that makes no sense.
std::unique_ptr<torch::optim::Optimizer> make_adam_lbfgs(const std::vector<at::Tensor>& parameters,
                                                         const AdamLbfgsOptions& options = {});

// Defaults as in torch.optim.Adam.
struct PythonAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
};

// Adam with the bits of Python's torch.optim.Adam, one parameter group; torch::optim::Adam
// rounds its first moment otherwise. The class of its state is "Adam" too: a checkpoint of
// one goes on with the other. ConfigError names the option that makes no sense.
std::unique_ptr<torch::optim::Optimizer> make_python_adam(const std::vector<at::Tensor>& parameters,
                                                          const PythonAdamOptions& options = {});

// Defaults as in DeepSpeed, where "Adam" too decays as AdamW.
struct CpuAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool adam_w_mode = true;  // false: the decay is added to the gradient
};

// Adam of float32 parameters on the CPU in one pass over memory, in several threads: the bits
// of LibTorch's fused Adam. The class of its state is "AdamW", or "Adam" with adam_w_mode off:
// a checkpoint goes on with the optimizer of torch::optim of that name, and the other way
// round. ConfigError names the option that makes no sense, or a parameter that is not float32
// or not on the CPU.
std::unique_ptr<torch::optim::Optimizer> make_cpu_adam(const std::vector<at::Tensor>& parameters,
                                                       const CpuAdamOptions& options = {});

// lr, eps and weight_decay default as in DeepSpeed, the rest is torch.optim.Adagrad's.
struct CpuAdagradOptions {
  double lr = 1e-2;
  double eps = 1e-10;
  double weight_decay = 0;
  double lr_decay = 0;
  double initial_accumulator_value = 0;
};

// torch.optim.Adagrad to rounding, of float32 parameters on the CPU, in one pass over memory
// and in several threads. The class of its state is "Adagrad": a checkpoint goes on with
// torch::optim::Adagrad, and the other way round. ConfigError as make_cpu_adam.
std::unique_ptr<torch::optim::Optimizer> make_cpu_adagrad(const std::vector<at::Tensor>& parameters,
                                                          const CpuAdagradOptions& options = {});

// Names and defaults as in DeepSpeed.
struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
  bool eps_inside_sqrt = false;
  // Bounds of |parameter| / |update|, by which each parameter's step is multiplied.
  double max_coeff = 10;
  double min_coeff = 0.01;
};

// LAMB (You et al. 2019) with DeepSpeed's arithmetic, one parameter group, on any device; the
// parameters of a group are on one device. optimizer_state() saves and loads it. ConfigError
// names the option that makes no sense.
std::unique_ptr<torch::optim::Optimizer> make_lamb(const std::vector<at::Tensor>& parameters,
                                                   const LambOptions& options = {});

// Defaults as in DeepSpeed, but for lr, which is the paper's: Lion moves every weight by lr.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;  // of the weights themselves, not of the gradient
};

// Lion (Chen et al. 2023), one parameter group. float32 parameters on the CPU are stepped in
// one pass over memory and in several threads, others by LibTorch's operations, on any
// device. optimizer_state() saves and loads it. ConfigError names the option that makes no
// sense.
std::unique_ptr<torch::optim::Optimizer> make_lion(const std::vector<at::Tensor>& parameters,
                                                   const LionOptions& options = {});

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

struct WeightAverageOptions {
  enum class Buffers {
    kCopy,    // the model's, as they are
    kAverage  // averaged like the weights
  };

  double decay = 0.999;
  int64_t update_every = 1;  // steps
  int64_t start_step = 0;    // averages nothing before this step
  // The n-th update uses min(decay, (1 + n) / (10 + n)): an average that starts from
  // random weights forgets them.
  bool warm_up = false;
  Buffers buffers = Buffers::kCopy;
};

// The exponential moving average of a model's weights:
//   average = decay * average + (1 - decay) * weights
// The first update copies. Equals torch.optim.swa_utils.AveragedModel with
// get_ema_multi_avg_fn. Averages live on the weights' devices and have their dtypes, but
// float32 for weights of 16 bits, which would round most updates away.
//
// Equal weights on all ranks give equal averages; nothing is communicated. Holds the
// model's parameter and buffer tensors, not the model. One thread at a time.
class WeightAverage {
 public:
  // Puts the averages into the model while it lives, and the weights back after, also
  // when an exception leaves the scope. Must not outlive its WeightAverage.
  class Swap {
   public:
    ~Swap();
    Swap(Swap&& other) noexcept : average_(std::exchange(other.average_, nullptr)) {}
    Swap& operator=(Swap&&) = delete;

   private:
    friend class WeightAverage;
    explicit Swap(WeightAverage* average);
    WeightAverage* average_;
  };

  // ConfigError names the option that makes no sense.
  WeightAverage(const torch::nn::Module& module, const WeightAverageOptions& options = {});
  WeightAverage(const WeightAverage&) = delete;
  WeightAverage& operator=(const WeightAverage&) = delete;

  // Call after every optimizer step with its number, from 1. Does nothing before
  // start_step and between multiples of update_every. True: the averages moved.
  bool update(int64_t step);
  // Updates whatever the step.
  void update();
  int64_t updates() const { return updates_; }

  // Evaluates with the averages: { auto scope = average.swap_in(); evaluate(model); }
  // Before the first update the averages are the weights the model had at construction.
  // Inside the scope update(), state() and load_state() are InternalErrors.
  [[nodiscard]] Swap swap_in() { return Swap(this); }

  // The averages under the names of the parameters and buffers, and "n_averaged", an
  // int64 scalar. The tensors are the object's own: clone what must not change.
  NamedTensors state() const;
  // Copies. ConfigError names what is missing, unknown or of another shape; nothing is
  // changed then.
  void load_state(const NamedTensors& state);

 private:
  struct Entry {
    std::string name;
    at::Tensor weight;    // the model's
    at::Tensor average;   // ours
    at::Tensor replaced;  // the model's, while an average of another dtype is in the model
    bool is_buffer = false;
  };

  void exchange();
  double current_decay() const;

  WeightAverageOptions options_;
  std::vector<Entry> entries_;
  int64_t updates_ = 0;
  bool swapped_ = false;
};

// All that an optimizer knows, by the names of the parameters.
//
// `tensors`: "PARAMETER/FIELD" for what belongs to one parameter, "0.weight/exp_avg";
// parameter names hold no "/". LBFGS keeps one flat state for all: "/d", "/old_dirs/0".
// An optimizer of a class that is not known here is one uint8 tensor, "/archive".
//
// `values`, a JSON object as text:
//   "class"   "Adam"
//   "groups"  [{"parameters": ["0.weight", ...], "options": {"lr": 0.1, ...}}, ...]
//   "state"   {"0.weight": {"step": 12}}: the numbers of each parameter that has had a
//             gradient; a parameter without entry has no state yet
struct OptimizerState {
  NamedTensors tensors;
  std::string values;
};

// The class of an optimizer: "SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "LBFGS",
// "Adadelta", "Lion", "Lamb", "AdamLbfgs", or its C++ name.
std::string optimizer_class(const torch::optim::Optimizer& optimizer);

// `parameters`: every parameter that the optimizer has, and any others, in the order of
// registration; torch::nn::Module::named_parameters() makes it. The tensors are the
// optimizer's own, not copies: the next step changes them. ConfigError: a parameter of
// the optimizer has no name here.
OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer, const NamedTensors& parameters);

// Copies the state into an optimizer of the same class with the same groups of the same
// parameters, on whatever device. Everything that a step depends on is then as it was,
// the options of the groups included. ConfigError names class, group or parameter and
// what differs; the optimizer is unchanged then.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                          const OptimizerState& state);

}  // namespace lockstep
