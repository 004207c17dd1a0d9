#include <lockstep/deepspeed_schedules.h>
#include <lockstep/learning_rate.h>

#include <lockstep/json.h>
#include <algorithm>
#include <array>

#include "optim/argument.h"
#include "optim/deepspeed_kinds.h"
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
bool is_valid(const Json& value, const int64_t&) { return value.is_number_integer(); }
bool is_valid(const Json& value, const double&) { return value.is_number(); }
bool is_valid(const Json& value, const std::vector<int64_t>&) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_number_integer(); });
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

// `extra`: a name that is no field but allowed.
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

// The schedule of the kind with this name; nullopt: none has it.
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

}  // namespace lockstep
