#pragma once

#include <lockstep/json.h>
#include <cstdint>
#include <optional>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

enum class MetricMode { kMin, kMax };  // "min", "max": which way is better
enum class ThresholdMode { kRelative, kAbsolute };

// ReduceLROnPlateau of torch.optim.lr_scheduler, apart from one thing: a relative
// threshold also works for a metric below 0, where PyTorch's takes a standstill for an
// improvement and never reduces.
struct ReduceOnPlateauOptions {
  std::string monitor = "train_loss";  // for whoever looks the metric up
  int64_t patience = 20;               // misses that are let pass; the next one reduces
  MetricMode mode = MetricMode::kMin;
  double gamma = 0.5;
  double threshold = 1e-4;  // a smaller improvement is a miss
  ThresholdMode threshold_mode = ThresholdMode::kRelative;
  int64_t cooldown = 0;  // observations after a reduction in which misses do not count
  double min_lr = 1e-6;
  double eps = 1e-8;  // a smaller change of the rate is not made
};

// Multiplies every group's learning rate by gamma when a metric stops improving.
// Keeps no reference to an optimizer. Every rank must observe the same value: reduce
// the metric first. One thread at a time.
class ReduceOnPlateau {
 public:
  // ConfigError names the option that makes no sense.
  explicit ReduceOnPlateau(const ReduceOnPlateauOptions& options = {});

  // True: the rates were due to be reduced, and are. A NaN is a miss.
  bool observe(double metric, torch::optim::Optimizer& optimizer);
  // The same without an optimizer: true when the rates are to be reduced now.
  bool observe(double metric);
  // What a rate becomes in a reduction.
  double reduced(double lr) const;

  std::optional<double> best() const { return best_; }
  int64_t misses() const { return misses_; }
  const ReduceOnPlateauOptions& options() const { return options_; }

  Json state() const;
  void load_state(const Json& state);

 private:
  bool is_better(double metric) const;

  ReduceOnPlateauOptions options_;
  std::optional<double> best_;
  int64_t misses_ = 0;
  int64_t cooldown_left_ = 0;
};

}  // namespace lockstep
