#include "config/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace lockstep::config {
namespace {

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string variable_name(const std::string& name) {
  std::string result = "LOCKSTEP_" + name;
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return result;
}

std::string help_of(const std::string& help, const OptionRules& rules) {
  if (rules.choices.empty()) return help;
  return fmt::format("{} ({})", help, fmt::join(rules.choices, ", "));
}

void check_rules(const std::string& name, const nlohmann::json& value, const OptionRules& rules) {
  if (value.is_null()) return;
  if (!rules.choices.empty()) {
    const auto text = value.get<std::string>();
    if (std::find(rules.choices.begin(), rules.choices.end(), text) == rules.choices.end()) {
      throw ConfigError(
          "config", fmt::format("{} must be one of {}: '{}'", name, fmt::join(rules.choices, ", "), text));
    }
  }
  if (rules.minimum && value.is_number_integer() && value.get<int64_t>() < *rules.minimum) {
    throw ConfigError("config",
                      fmt::format("{} must be at least {}: {}", name, *rules.minimum, value.dump()));
  }
}

}  // namespace

OptionTable::OptionTable(std::string description) : description_(std::move(description)) {}

std::string OptionTable::flag_names(const std::string& name, bool negated) {
  std::string names = "--" + name;
  const std::string dashed = with_dashes(name);
  if (dashed != name) names += ",--" + dashed;
  if (negated) names += ",!--no_" + name + ",!--no-" + dashed;
  return names;
}

void OptionTable::parse(int argc, const char* const* argv) {
  const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "program";
  CLI::App app(description_, program);
  for (const Entry& entry : entries_) {
    entry.declare(app)->envname(variable_name(entry.name))->description(help_of(entry.help, entry.rules));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    throw HelpRequested(app.help());
  } catch (const CLI::ParseError& error) {
    throw ConfigError("config", fmt::format("{}; {} --help lists the options", error.what(), program));
  }
  validate();
}

void OptionTable::validate() const {
  for (const Entry& entry : entries_) check_rules(entry.name, entry.value(), entry.rules);
}

nlohmann::json OptionTable::to_json() const {
  nlohmann::json result = nlohmann::json::object();
  for (const Entry& entry : entries_) result[entry.name] = entry.value();
  return result;
}

}  // namespace lockstep::config
