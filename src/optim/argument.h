#pragma once

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/json.h>

#include <cmath>
#include <string_view>
#include <vector>

namespace lockstep::optim {

// How errors name a schedule.
inline std::string schedule_name(std::string_view kind) { return fmt::format("the schedule '{}'", kind); }

// ConfigError names the option of `what`, the rule that it breaks and its value.
template <typename T>
void require(bool holds, std::string_view what, std::string_view option, std::string_view rule,
             const T& value) {
  if (!holds) {
    throw ConfigError("optim", fmt::format("option '{}' of {} must be {}: {}", option, what, rule, value));
  }
}

inline void require_at_least(int64_t minimum, std::string_view what, std::string_view option, int64_t value) {
  require(value >= minimum, what, option, fmt::format("at least {}", minimum), value);
}

inline void require_positive(std::string_view what, std::string_view option, double value) {
  require(std::isfinite(value) && value > 0, what, option, "a number above 0", value);
}

inline void require_not_negative(std::string_view what, std::string_view option, double value) {
  require(std::isfinite(value) && value >= 0, what, option, "a number of at least 0", value);
}

// The decay of a running average, whose bias correction divides by 1 - beta.
inline void require_beta(std::string_view what, std::string_view option, double value) {
  require(value >= 0 && value < 1, what, option, "at least 0 and below 1", value);
}

inline void require_fraction(std::string_view what, std::string_view option, double value) {
  require(value >= 0 && value <= 1, what, option, "between 0 and 1", value);
}

template <typename Tensor>
void require_parameters(std::string_view what, const std::vector<Tensor>& parameters) {
  require(!parameters.empty(), what, "parameters", "one or more", "none");
}

// The options of Adam, which its relatives have too.
template <typename Options>
void require_adam_options(std::string_view what, const Options& options) {
  require_not_negative(what, "lr", options.lr);
  require_beta(what, "beta1", options.beta1);
  require_beta(what, "beta2", options.beta2);
  require_not_negative(what, "eps", options.eps);
  require_not_negative(what, "weight_decay", options.weight_decay);
}

// Runs a function that reads a saved state. ConfigError: a value is missing or of another type.
template <typename Read>
void read_saved(std::string_view what, Read read) {
  try {
    read();
  } catch (const JsonError& error) {
    throw ConfigError("optim", fmt::format("the saved state of {} cannot be read: {}", what, error.what()));
  }
}

}  // namespace lockstep::optim
