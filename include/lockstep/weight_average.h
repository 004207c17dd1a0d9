#pragma once

#include <lockstep/named_tensors.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep {

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

}  // namespace lockstep
