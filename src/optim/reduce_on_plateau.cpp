#include <lockstep/learning_rate.h>
#include <lockstep/reduce_on_plateau.h>

#include <lockstep/json.h>
#include <algorithm>
#include <limits>

#include "optim/argument.h"
#include "optim/saved_state.h"

namespace lockstep {

ReduceOnPlateau::ReduceOnPlateau(const ReduceOnPlateauOptions& options) : options_(options) {
  constexpr auto kWhat = "the schedule 'plateau'";
  optim::require(!options.monitor.empty(), kWhat, "monitor", "the name of a metric", "''");
  optim::require_at_least(0, kWhat, "patience", options.patience);
  optim::require(options.gamma > 0 && options.gamma < 1, kWhat, "gamma", "above 0 and below 1",
                 options.gamma);
  const bool relative = options.threshold_mode == ThresholdMode::kRelative;
  optim::require_not_negative(kWhat, "threshold", options.threshold);
  optim::require(!relative || options.threshold < 1, kWhat, "threshold", "below 1 when it is relative",
                 options.threshold);
  optim::require_at_least(0, kWhat, "cooldown", options.cooldown);
  optim::require_not_negative(kWhat, "min_lr", options.min_lr);
  optim::require_not_negative(kWhat, "eps", options.eps);
}

bool ReduceOnPlateau::is_better(double metric) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // Better is below for kMin, above for kMax.
  const double direction = options_.mode == MetricMode::kMin ? -1.0 : 1.0;
  const double best = best_.value_or(-direction * kInfinity);
  // A relative step leads away from 0 or towards it, whichever is better: below 0
  // PyTorch's goes the wrong way, and every value that stands still would be better.
  const double bar = options_.threshold_mode == ThresholdMode::kAbsolute
                         ? best + direction * options_.threshold
                         : best * (1.0 + (best < 0 ? -direction : direction) * options_.threshold);
  return direction < 0 ? metric < bar : metric > bar;
}

bool ReduceOnPlateau::observe(double metric) {
  if (is_better(metric)) {
    best_ = metric;
    misses_ = 0;
  } else {
    ++misses_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    misses_ = 0;
  }
  if (misses_ <= options_.patience) return false;
  cooldown_left_ = options_.cooldown;
  misses_ = 0;
  return true;
}

double ReduceOnPlateau::reduced(double lr) const {
  const double next = std::max(lr * options_.gamma, options_.min_lr);
  return lr - next > options_.eps ? next : lr;
}

bool ReduceOnPlateau::observe(double metric, torch::optim::Optimizer& optimizer) {
  if (!observe(metric)) return false;
  auto rates = learning_rates(optimizer);
  for (double& rate : rates) rate = reduced(rate);
  set_learning_rates(optimizer, rates);
  return true;
}

Json ReduceOnPlateau::state() const {
  return {{"best", best_ ? exact_number(*best_) : Json()},
          {"misses", misses_},
          {"cooldown_left", cooldown_left_}};
}

void ReduceOnPlateau::load_state(const Json& state) {
  std::optional<double> best;
  int64_t misses = 0;
  int64_t cooldown_left = 0;
  optim::read_saved("the schedule 'plateau'", [&] {
    if (!state.at("best").is_null()) best = exact_number_of(state.at("best"));
    state.at("misses").get_to(misses);
    state.at("cooldown_left").get_to(cooldown_left);
  });
  best_ = best;
  misses_ = misses;
  cooldown_left_ = cooldown_left;
}

}  // namespace lockstep
