#pragma once

// Optimizers that LibTorch does not have (Adadelta, LAMB, Lion, fast Adam and Adagrad on the CPU, and
// others), and tools around an optimizer: loss scaling for fp16, exponential averages of weights, and
// the optimizer's state under the names that Python uses.
//
// Example:
//
//   const auto lion = lockstep::make_lion(net->parameters(), {.lr = 1e-4, .weight_decay = 0.1});
//   lion->zero_grad();
//   torch::mse_loss(net->forward(x), y).backward();
//   lion->step();
//
// More: docs/optim.md

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

// Defaults of torch.optim.Adadelta.
struct AdadeltaOptions {
  double lr = 1.0;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
};

// torch.optim.Adadelta with the same bits, with one parameter group. optimizer_state() saves it.
// ConfigError names the option that is not valid; so do the functions below.
std::unique_ptr<torch::optim::Optimizer> make_adadelta(const std::vector<at::Tensor>& parameters,
                                                       const AdadeltaOptions& options = {});

// Defaults of perceptrain.
struct AdamLbfgsOptions {
  int64_t switch_step = 10000;  // number of steps with Adam; LBFGS after them
  double adam_lr = 1e-2;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double lbfgs_lr = 1;
  int64_t lbfgs_max_iter = 20;
  int64_t lbfgs_history_size = 100;
  bool strong_wolfe = false;  // LBFGS's line search
};

// Adam first, LBFGS from step switch_step on, with one parameter group. Its learning rate is Adam's.
// LBFGS runs with lbfgs_lr, scaled by the current rate / adam_lr, so that a schedule works across the
// switch. optimizer_state() saves it. After the switch step() without a closure is a ConfigError.
std::unique_ptr<torch::optim::Optimizer> make_adam_lbfgs(const std::vector<at::Tensor>& parameters,
                                                         const AdamLbfgsOptions& options = {});

// Defaults of torch.optim.Adam.
struct PythonAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
};

// Adam with the bits of Python's torch.optim.Adam, with one parameter group; torch::optim::Adam rounds
// its first moment in another way. The class of its state is "Adam" for both, so each can resume from a
// checkpoint of the other. Complex parameters are pairs of real ones, as in Python; torch::optim::Adam would
// take complex squares.
std::unique_ptr<torch::optim::Optimizer> make_python_adam(const std::vector<at::Tensor>& parameters,
                                                          const PythonAdamOptions& options = {});

// Defaults of DeepSpeed, where "Adam" also decays weights as AdamW does.
struct CpuAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool adam_w_mode = true;  // false: weight decay is added to the gradient
};

// Adam for float32 parameters on the CPU, in one pass over memory and with several threads; the bits of
// LibTorch's fused Adam in one thread, also for shards of parameters. The class of its state is "AdamW", or
// "Adam" with adam_w_mode off: it and the optimizer of torch::optim with that name can resume from each
// other's checkpoints. ConfigError also names a parameter that is not float32 or not on the CPU.
std::unique_ptr<torch::optim::Optimizer> make_cpu_adam(const std::vector<at::Tensor>& parameters,
                                                       const CpuAdamOptions& options = {});

// lr, eps and weight_decay have DeepSpeed's defaults, the others those of torch.optim.Adagrad.
struct CpuAdagradOptions {
  double lr = 1e-2;
  double eps = 1e-10;
  double weight_decay = 0;
  double lr_decay = 0;
  double initial_accumulator_value = 0;
};

// torch.optim.Adagrad up to rounding, for float32 parameters on the CPU, in one pass over memory and
// with several threads. The class of its state is "Adagrad": it and torch::optim::Adagrad can resume
// from each other's checkpoints. ConfigError: as make_cpu_adam().
std::unique_ptr<torch::optim::Optimizer> make_cpu_adagrad(const std::vector<at::Tensor>& parameters,
                                                          const CpuAdagradOptions& options = {});

// Names and defaults of DeepSpeed.
struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
  bool eps_inside_sqrt = false;
  // Bounds of the trust ratio |parameter| / |update|, by which the step of each parameter is
  // multiplied.
  double max_coeff = 10;
  double min_coeff = 0.01;
};

// LAMB (You et al. 2019) with DeepSpeed's arithmetic, with one parameter group, on any device; all
// parameters of a group are on one device. optimizer_state() saves it.
std::unique_ptr<torch::optim::Optimizer> make_lamb(const std::vector<at::Tensor>& parameters,
                                                   const LambOptions& options = {});

// Defaults of DeepSpeed, except lr, which is the paper's: Lion changes every weight by lr in each step.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;  // decoupled: applied to the weights, not to the gradient
};

// Lion (Chen et al. 2023), with one parameter group. float32 parameters on the CPU are updated in one
// pass over memory with several threads, others by LibTorch's operations on any device.
// optimizer_state() saves it.
std::unique_ptr<torch::optim::Optimizer> make_lion(const std::vector<at::Tensor>& parameters,
                                                   const LionOptions& options = {});

// While it exists, operations on this device run in 16 bits where that is safe, and in 32 bits where it is
// not, as under torch.autocast. With fp16 scale the loss, too (GradScaler).
//
//   {
//     const lockstep::Autocast autocast("bf16", world.device().type());
//     loss = torch::mse_loss(net->forward(x), y);
//   }
//   loss.backward();
//
// Applies to the thread that made it; destroyed on the same thread. The trainer does this itself: its
// precision.
class Autocast {
 public:
  // fp32, which changes nothing, bf16 or fp16. ConfigError: another text.
  Autocast(const std::string& precision, c10::DeviceType device);
  // float32 changes nothing.
  Autocast(c10::ScalarType dtype, c10::DeviceType device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool active_;
  bool was_enabled_ = false;
  c10::ScalarType dtype_before_ = c10::ScalarType::Float;
  c10::DeviceType device_;
};

class Communicator;

// DeepSpeed's rules for the loss scale, with its names and defaults (`fp16` of its configuration).
struct DeepSpeedScaleOptions {
  int64_t initial_scale_power = 16;     // the first scale is 2 to the power of this
  int64_t loss_scale_window = 1000;     // the scale doubles after this many finite steps in a row
  int64_t hysteresis = 2;               // the scale halves at this overflow, the second by default
  bool consecutive_hysteresis = false;  // true: a finite step resets the hysteresis; false: a window does
  double min_loss_scale = 1;            // an overflow at this scale is a ConfigError
};

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // the scale grows after this many finite steps in a row
  // DeepSpeed's rules instead of torch.amp's. The four options above are then ignored.
  std::optional<DeepSpeedScaleOptions> deepspeed = {};
  // false: the scale stays init_scale, and steps that overflow are still skipped.
  bool dynamic = true;
  // A scale below this is reported by a warning: the scale has collapsed, and the cause of the
  // overflows is another one. 0: no warning.
  double collapse_scale = 1;
  // Skipped steps in a row after which check_progress() throws.
  int64_t max_consecutive_skips = 100;
};

// Multiplies the loss so that small gradients do not vanish in float16, and skips steps whose gradients
// overflow. Arithmetic, defaults and names of the state are those of torch.amp.GradScaler, or
// optionally DeepSpeed's.
//
//   scaler.scale(loss).backward();
//   if (scaler.unscale(sync.flat_gradients(), communicator)) {
//     sync.clip_grad_norm(1.0);
//     optimizer.step();
//   }
//   scaler.update();
//
// The scale does not change between the backwards of one accumulated step: call unscale() and update()
// once, after the last one. One thread at a time.
class GradScaler {
 public:
  // ConfigError names the option that is not valid.
  explicit GradScaler(const GradScalerOptions& options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;

  // loss * scale, on the loss's device.
  at::Tensor scale(const at::Tensor& loss);

  // Divides the gradients by the scale in place and checks whether they are finite. Undefined tensors
  // are ignored. true: finite on all ranks, take the step. false: skip it. Collective; blocks until all
  // ranks have answered. ConfigError: float16 gradients (parameters must be float32), or a second call
  // before update().
  bool unscale(const std::vector<at::Tensor>& gradients, const Communicator& communicator);
  // The same for one rank, without communication.
  bool unscale(const std::vector<at::Tensor>& gradients);

  // The same without waiting for the device. Returns one number on the device, not 0 if the step is to
  // be skipped: for kernels that check it themselves, and for recorded steps. Collective.
  at::Tensor unscale_on_device(const std::vector<at::Tensor>& gradients, const Communicator& communicator);

  // Replaces unscale() for callers that unscale and check in a pass of their own: `overflow` is their
  // result, the same on all ranks. No communication.
  void note_overflow(bool overflow, const Communicator& communicator);

  // Adjusts the scale by the result of unscale(); once for each step. Counts a skipped step, and warns
  // if the scale has collapsed; after unscale_on_device() both happen when the counts are read next.
  // With DeepSpeed's rules it waits for the device. ConfigError: no unscale() before it; or, with
  // DeepSpeed's rules, an overflow at the minimum scale, on all ranks alike.
  void update();
  // ConfigError: max_consecutive_skips steps in a row were skipped, so no scale will help.
  void check_progress() const;

  // These wait for the device of the scale.
  double current_scale() const;
  int64_t growth_tracker() const;  // finite steps since the scale last changed
  int64_t skipped_steps() const;   // in total
  int64_t consecutive_skips() const;
  // Whether the step of the last update() was skipped.
  bool last_step_skipped() const { return consecutive_skips() > 0; }
  const GradScalerOptions& options() const;

  // "scale", "growth_factor", "backoff_factor", "growth_interval" and "_growth_tracker" as in Python,
  // the counts of skipped steps, and "deepspeed": the state of its rules.
  Json state() const;
  void load_state(const Json& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct WeightAverageOptions {
  enum class Buffers {
    kCopy,    // copied from the model
    kAverage  // averaged like the weights
  };

  double decay = 0.999;
  int64_t update_every = 1;  // steps
  int64_t start_step = 0;    // no average before this step
  // true: update number n uses min(decay, (1 + n) / (10 + n)), so that an average that starts from
  // random weights forgets them.
  bool warm_up = false;
  Buffers buffers = Buffers::kCopy;
};

// The exponential moving average of a model's weights:
//   average = decay * average + (1 - decay) * weights
// The first update copies the weights. Equal to torch.optim.swa_utils.AveragedModel with
// get_ema_multi_avg_fn. Averages are on the weights' devices and have their dtypes, except float32 for
// 16-bit weights, where rounding would lose most updates.
//
// Equal weights on all ranks give equal averages; no communication. Keeps the model's parameter and
// buffer tensors, not the model. One thread at a time.
class WeightAverage {
 public:
  // The model has the averages as weights while it exists, and its own weights again after that, also
  // if an exception ends the scope. Must not outlive its WeightAverage.
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

  // ConfigError names the option that is not valid.
  explicit WeightAverage(const torch::nn::Module& module, const WeightAverageOptions& options = {});
  WeightAverage(const WeightAverage&) = delete;
  WeightAverage& operator=(const WeightAverage&) = delete;

  // Call it after every optimizer step, with the number of the step, from 1. Does nothing before
  // start_step and between multiples of update_every. true: the averages changed.
  bool update(int64_t step);
  // Updates the averages now.
  void update();
  int64_t updates() const { return updates_; }

  // Evaluates with the averages: { auto scope = average.swap_in(); evaluate(model); } Before the first
  // update the averages are the weights at construction. Inside the scope update(), state() and
  // load_state() throw InternalError.
  [[nodiscard]] Swap swap_in() { return Swap(this); }

  // The averages under the names of the parameters and buffers, and "n_averaged", an int64 scalar. The
  // tensors are the object's own, not copies.
  NamedTensors state() const;
  // Copies the tensors. ConfigError names what is missing, unknown or of another shape; nothing is
  // changed then.
  void load_state(const NamedTensors& state);

 private:
  struct Entry {
    std::string name;
    at::Tensor weight;    // the model's
    at::Tensor average;   // ours
    at::Tensor replaced;  // the model's, while the model has an average of another dtype
    bool is_buffer = false;
  };

  void exchange();
  double current_decay() const;

  WeightAverageOptions options_;
  std::vector<Entry> entries_;
  int64_t updates_ = 0;
  bool swapped_ = false;
};

// The complete state of an optimizer, by the names of the parameters.
//
// `tensors`: "PARAMETER/FIELD" for the state of one parameter, for example "0.weight/exp_avg";
// parameter names contain no "/". LBFGS has one flat state for all parameters: "/d", "/old_dirs/0". An
// optimizer of an unknown class is one uint8 tensor, "/archive".
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

// The class of an optimizer: "SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "LBFGS", "Adadelta", "Lion",
// "Lamb", "AdamLbfgs", or its C++ name.
std::string optimizer_class(const torch::optim::Optimizer& optimizer);

// `parameters` are all parameters of the optimizer, and possibly others, in the order of registration,
// as named_parameters() returns them. The tensors of the result are the optimizer's own, not copies:
// the next step changes them. ConfigError: a parameter of the optimizer has no name.
OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer, const NamedTensors& parameters);

// Copies the state into an optimizer of the same class with the same groups of the same parameters, on
// any device, including the options of the groups. The next step is then that of the saved optimizer.
// ConfigError names the class, group or parameter and what differs; the optimizer is not changed then.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const NamedTensors& parameters,
                          const OptimizerState& state);

}  // namespace lockstep
