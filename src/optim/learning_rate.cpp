#include <lockstep/json.h>
#include <lockstep/schedule.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/log.h"
#include "optim/argument.h"
#include "optim/optimizers.h"
#include "optim/schedule_kinds.h"

namespace lockstep {

class LearningRateSchedule::Impl {
 public:
  virtual ~Impl() = default;
  virtual double at(int64_t step, double base_lr) const = 0;
  virtual std::optional<double> momentum_at(int64_t) const { return std::nullopt; }
  virtual std::optional<std::pair<double, double>> betas_at(int64_t) const { return std::nullopt; }
  virtual Json to_json() const = 0;
};

namespace {

using optim::ConstantRate;

Json value_json(OneCycle::Anneal anneal) { return anneal == OneCycle::Anneal::kCosine ? "cosine" : "linear"; }
Json value_json(WarmupType type) { return type == WarmupType::kLog ? "log" : "linear"; }
template <typename T>
Json value_json(const T& value) {
  return value;
}

template <typename Options>
Json options_json(const Options& options) {
  Json result{{"kind", optim::kind_name(options)}};
  optim::for_each_field(options,
                        [&](const char* name, const auto& value) { result[name] = value_json(value); });
  return result;
}

bool is_valid(const Json& value, const OneCycle::Anneal&) { return value == "cosine" || value == "linear"; }
bool is_valid(const Json& value, const WarmupType&) { return value == "log" || value == "linear"; }
bool is_valid(const Json& value, const bool&) { return value.is_boolean(); }
bool is_valid(const Json& value, const int64_t&) { return value.is_integer_of<int64_t>(); }
bool is_valid(const Json& value, const double&) { return value.is_number(); }
bool is_valid(const Json& value, const std::vector<int64_t>&) {
  return value.is_array() && std::all_of(value.begin(), value.end(),
                                         [](const Json& item) { return item.is_integer_of<int64_t>(); });
}
template <typename T>
bool is_valid(const Json& value, const std::optional<T>&) {
  return value.is_null() || is_valid(value, T());
}

void read_value(const Json& value, OneCycle::Anneal& anneal) {
  anneal = value == "cosine" ? OneCycle::Anneal::kCosine : OneCycle::Anneal::kLinear;
}
void read_value(const Json& value, WarmupType& type) {
  type = value == "log" ? WarmupType::kLog : WarmupType::kLinear;
}
template <typename T>
void read_value(const Json& value, T& field) {
  value.get_to(field);
}
template <typename T>
void read_value(const Json& value, std::optional<T>& field) {
  if (value.is_null()) {
    field.reset();
  } else {
    field = value.get<T>();
  }
}

// `extra`: a name that is allowed although it is no field.
template <typename Options>
Options options_from(const Json& source, std::string_view extra = "") {
  Options options;
  const auto what = optim::schedule_name(optim::kind_name(options));
  size_t known = 0;
  std::string names;
  optim::for_each_field(options, [&](const char* name, auto& field) {
    names += fmt::format(" {}", name);
    if (!source.contains(name)) return;
    ++known;
    if (!is_valid(source[name], field)) {
      throw ConfigError("optim", fmt::format("option '{}' of {} has a value of the wrong kind: {}", name,
                                             what, source[name].dump()));
    }
    read_value(source[name], field);
  });
  if (known + 1 + (!extra.empty() && source.contains(extra) ? 1 : 0) != source.size()) {
    throw ConfigError(
        "optim", fmt::format("{} has an option that is unknown; it knows{}: {}", what, names, source.dump()));
  }
  return options;
}

template <typename Options>
class Schedule final : public LearningRateSchedule::Impl {
 public:
  explicit Schedule(const Options& options) : options_(options) { optim::check_options(options); }

  double at(int64_t step, double base_lr) const override { return optim::rate_at(options_, step, base_lr); }
  std::optional<double> momentum_at(int64_t step) const override {
    if constexpr (std::is_same_v<Options, OneCycle>) {
      if (options_.cycle_momentum) return optim::momentum_at(options_, step);
    }
    return std::nullopt;
  }
  std::optional<std::pair<double, double>> betas_at(int64_t step) const override {
    if constexpr (std::is_same_v<Options, DeepSpeedOneCycle>) {
      if (options_.cycle_momentum) return optim::betas_at(options_, step);
    }
    return std::nullopt;
  }
  Json to_json() const override { return options_json(options_); }

 private:
  Options options_;
};

class WarmUpSchedule final : public LearningRateSchedule::Impl {
 public:
  WarmUpSchedule(const WarmUp& options, LearningRateSchedule then)
      : options_(options), then_(std::move(then)) {
    optim::check_options(options);
  }

  double at(int64_t step, double base_lr) const override {
    if (step >= options_.steps) return then_.at(step - options_.steps, base_lr);
    return then_.at(0, base_lr) * optim::warm_up_factor(options_, step);
  }
  std::optional<double> momentum_at(int64_t step) const override {
    return then_.momentum_at(std::max<int64_t>(0, step - options_.steps));
  }
  std::optional<std::pair<double, double>> betas_at(int64_t step) const override {
    return then_.betas_at(std::max<int64_t>(0, step - options_.steps));
  }
  Json to_json() const override {
    Json result = options_json(options_);
    result["then"] = then_.to_json();
    return result;
  }

 private:
  WarmUp options_;
  LearningRateSchedule then_;
};

template <typename Options>
LearningRateSchedule make(const Options& options) {
  return LearningRateSchedule(std::make_shared<Schedule<Options>>(options));
}

// The schedule of the kind with this name; nullopt: there is none.
template <typename... Options>
std::optional<LearningRateSchedule> make_kind(const std::string& kind, const Json& source) {
  std::optional<LearningRateSchedule> result;
  const auto try_kind = [&](const auto& options) {
    if (kind == optim::kind_name(options)) {
      result = make(options_from<std::decay_t<decltype(options)>>(source));
    }
  };
  (try_kind(Options()), ...);
  return result;
}

void check_step(int64_t step) {
  if (step < 0) throw ConfigError("optim", fmt::format("a step is at least 0: {}", step));
}

}  // namespace

double LearningRateSchedule::at(int64_t step, double base_lr) const {
  check_step(step);
  return impl_->at(step, base_lr);
}

std::optional<double> LearningRateSchedule::momentum_at(int64_t step) const {
  check_step(step);
  return impl_->momentum_at(step);
}

std::optional<std::pair<double, double>> LearningRateSchedule::betas_at(int64_t step) const {
  check_step(step);
  return impl_->betas_at(step);
}

Json LearningRateSchedule::to_json() const { return impl_->to_json(); }

LearningRateSchedule LearningRateSchedule::from_json(const Json& source) {
  if (!source.is_object() || !source.contains("kind") || !source["kind"].is_string()) {
    throw ConfigError("optim", "a learning rate schedule is an object with a 'kind': " + source.dump());
  }
  const auto kind = source["kind"].get<std::string>();
  if (kind == "warm_up") {
    const auto options = options_from<WarmUp>(source, "then");
    return with_warm_up(options, source.contains("then") ? from_json(source["then"]) : constant_rate());
  }
  auto schedule = make_kind<ConstantRate, StepDecay, MultiStepDecay, ExponentialDecay, PolynomialDecay,
                            CyclicRate, CosineAnnealing, CosineRestarts, OneCycle, WarmupLr, WarmupDecayLr,
                            WarmupCosineLr, LrRangeTest, DeepSpeedOneCycle>(kind, source);
  if (!schedule) {
    throw ConfigError("optim",
                      fmt::format("unknown kind of learning rate schedule, use constant, step, multi_step, "
                                  "exponential, polynomial, cyclic, cosine, cosine_restarts, one_cycle or "
                                  "warm_up, or one of DeepSpeed's: WarmupLR, WarmupDecayLR, "
                                  "WarmupCosineLR, LRRangeTest or OneCycle: {}",
                                  kind));
  }
  return *schedule;
}

LearningRateSchedule constant_rate() { return make(ConstantRate()); }
LearningRateSchedule step_decay(const StepDecay& options) { return make(options); }
LearningRateSchedule multi_step_decay(const MultiStepDecay& options) { return make(options); }
LearningRateSchedule exponential_decay(const ExponentialDecay& options) { return make(options); }
LearningRateSchedule polynomial_decay(const PolynomialDecay& options) { return make(options); }
LearningRateSchedule cyclic_rate(const CyclicRate& options) { return make(options); }
LearningRateSchedule cosine_annealing(const CosineAnnealing& options) { return make(options); }
LearningRateSchedule cosine_restarts(const CosineRestarts& options) { return make(options); }
LearningRateSchedule one_cycle(const OneCycle& options) { return make(options); }
LearningRateSchedule warmup_lr(const WarmupLr& options) { return make(options); }
LearningRateSchedule warmup_decay_lr(const WarmupDecayLr& options) { return make(options); }
LearningRateSchedule warmup_cosine_lr(const WarmupCosineLr& options) { return make(options); }
LearningRateSchedule lr_range_test(const LrRangeTest& options) { return make(options); }
LearningRateSchedule deepspeed_one_cycle(const DeepSpeedOneCycle& options) { return make(options); }
LearningRateSchedule with_warm_up(const WarmUp& options, const LearningRateSchedule& schedule) {
  return LearningRateSchedule(std::make_shared<WarmUpSchedule>(options, schedule));
}

namespace {

void check_groups(const torch::optim::Optimizer& optimizer, size_t rates) {
  const size_t groups = optimizer.param_groups().size();
  if (rates != groups) {
    throw ConfigError(
        "optim",
        fmt::format("one learning rate a parameter group is needed: {} rates for {} groups", rates, groups));
  }
}

template <typename Options>
bool change_betas(torch::optim::OptimizerOptions& options, double beta1, std::optional<double> beta2) {
  auto* adam = dynamic_cast<Options*>(&options);
  if (adam == nullptr) return false;
  adam->betas({beta1, beta2.value_or(std::get<1>(adam->betas()))});
  return true;
}

// Without beta2 the second beta is unchanged. False: these options have no betas.
bool set_group_betas(torch::optim::OptimizerOptions& options, double beta1, std::optional<double> beta2) {
  return change_betas<torch::optim::AdamOptions>(options, beta1, beta2) ||
         change_betas<torch::optim::AdamWOptions>(options, beta1, beta2) ||
         change_betas<optim::LionGroupOptions>(options, beta1, beta2) ||
         change_betas<optim::LambGroupOptions>(options, beta1, beta2);
}

template <typename Options>
bool set_plain_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  auto* plain = dynamic_cast<Options*>(&options);
  if (plain == nullptr) return false;
  plain->momentum(momentum);
  return true;
}

}  // namespace

std::vector<double> learning_rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void set_learning_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates) {
  check_groups(optimizer, rates.size());
  for (size_t i = 0; i < rates.size(); ++i) {
    if (!std::isfinite(rates[i]) || rates[i] < 0) {
      throw ConfigError(
          "optim",
          fmt::format("a learning rate is a number of at least 0: {} for parameter group {}", rates[i], i));
    }
  }
  for (size_t i = 0; i < rates.size(); ++i) optimizer.param_groups()[i].options().set_lr(rates[i]);
}

bool set_momentum(torch::optim::Optimizer& optimizer, double momentum) {
  bool all = true;
  for (auto& group : optimizer.param_groups()) {
    auto& options = group.options();
    all &= set_plain_momentum<torch::optim::SGDOptions>(options, momentum) ||
           set_plain_momentum<torch::optim::RMSpropOptions>(options, momentum) ||
           set_group_betas(options, momentum, std::nullopt);
  }
  return all;
}

bool set_betas(torch::optim::Optimizer& optimizer, double beta1, double beta2) {
  bool all = true;
  for (auto& group : optimizer.param_groups()) all &= set_group_betas(group.options(), beta1, beta2);
  return all;
}

ScheduledLearningRate::ScheduledLearningRate(torch::optim::Optimizer& optimizer,
                                             LearningRateSchedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)), base_lrs_(learning_rates(optimizer)) {
  set_step(0);
  const auto betas = schedule_.betas_at(0);
  if (betas && !set_betas(optimizer_, betas->first, betas->second)) {
    base::log_warning("optim", "the optimizer has no betas: the schedule leaves its momentum as it is: {}",
                      schedule_.to_json().dump());
  }
}

void ScheduledLearningRate::advance() { set_step(step_ + 1); }

void ScheduledLearningRate::set_step(int64_t step) {
  std::vector<double> rates;
  for (double base_lr : base_lrs_) rates.push_back(schedule_.at(step, base_lr));
  const auto momentum = schedule_.momentum_at(step);
  if (momentum && !set_momentum(optimizer_, *momentum)) {
    throw ConfigError("optim",
                      "the optimizer has no momentum that the schedule could move: set option "
                      "'cycle_momentum' to false: " +
                          schedule_.to_json().dump());
  }
  if (const auto betas = schedule_.betas_at(step)) set_betas(optimizer_, betas->first, betas->second);
  set_learning_rates(optimizer_, rates);
  step_ = step;
}

Json ScheduledLearningRate::state() const { return {{"step", step_}, {"base_lrs", base_lrs_}}; }

void ScheduledLearningRate::load_state(const Json& state) {
  std::vector<double> base_lrs;
  int64_t step = 0;
  optim::read_saved("the learning rate schedule", [&] {
    state.at("base_lrs").get_to(base_lrs);
    state.at("step").get_to(step);
  });
  check_groups(optimizer_, base_lrs.size());
  base_lrs_ = std::move(base_lrs);
  set_step(step);
}

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
  // A relative threshold moves the bar towards better values on both sides of 0. PyTorch's moves it the
  // wrong way below 0, where every unchanged value would count as better.
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
