#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace lockstep::config {

// What a value may be, whoever set it.
struct OptionRules {
  std::vector<std::string> choices;     // text options; empty: any
  std::optional<int64_t> minimum = {};  // numeric options
};

// The options of one struct: name, help, rules and field declared once, from which
// flags, environment variables, checks, help text and the printed configuration
// come. The table refers to the struct's fields: it must not outlive them.
//
// An option `max_iter` has the flags --max_iter and --max-iter and the variable
// LOCKSTEP_MAX_ITER; a bool also --no_verbose and --no-verbose.
class OptionTable {
 public:
  explicit OptionTable(std::string description);

  // T: std::string, bool, an integer, or std::optional of one.
  template <typename T>
  OptionTable& add(const std::string& name, T& field, const std::string& help, OptionRules rules = {}) {
    Entry entry;
    entry.name = name;
    entry.help = help;
    entry.declare = [name, help, &field](CLI::App& app) {
      if constexpr (std::is_same_v<T, bool>) {
        return app.add_flag(flag_names(name, /*negated=*/true), field, help);
      } else {
        return app.add_option(flag_names(name, /*negated=*/false), field, help)->capture_default_str();
      }
    };
    entry.value = [&field]() -> nlohmann::json {
      if constexpr (is_optional<T>::value) {
        return field ? nlohmann::json(*field) : nlohmann::json(nullptr);
      } else {
        return field;
      }
    };
    entry.rules = std::move(rules);
    entries_.push_back(std::move(entry));
    return *this;
  }

  // Reads variables and flags into the fields, then validates. ConfigError: an
  // unknown flag or a bad value; HelpRequested: --help.
  void parse(int argc, const char* const* argv);
  // ConfigError names the first option whose value breaks its rules.
  void validate() const;
  nlohmann::json to_json() const;

 private:
  struct Entry {
    std::string name;
    std::string help;
    std::function<CLI::Option*(CLI::App&)> declare;
    std::function<nlohmann::json()> value;
    OptionRules rules;
  };
  template <typename T>
  struct is_optional : std::false_type {};
  template <typename T>
  struct is_optional<std::optional<T>> : std::true_type {};

  static std::string flag_names(const std::string& name, bool negated);

  std::string description_;
  std::vector<Entry> entries_;
};

}  // namespace lockstep::config
