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
  // Not a number is not at least anything.
  if (rules.minimum && value.is_number() && !(value.get<double>() >= static_cast<double>(*rules.minimum))) {
    throw ConfigError("config",
                      fmt::format("{} must be at least {}: {}", name, *rules.minimum, value.dump()));
  }
}

}  // namespace

OptionTable::OptionTable(std::string description, std::string variable_prefix)
    : description_(std::move(description)), variable_prefix_(std::move(variable_prefix)) {}

std::string OptionTable::flag_names(const Entry& entry) {
  std::string names = "--" + entry.name;
  const std::string dashed = with_dashes(entry.name);
  if (dashed != entry.name) names += ",--" + dashed;
  if (!entry.rules.short_flag.empty()) names += ",-" + entry.rules.short_flag;
  if (entry.is_bool && entry.rules.negatable) names += ",!--no_" + entry.name + ",!--no-" + dashed;
  return names;
}

std::string OptionTable::variable_name(const Entry& entry) const {
  std::string result = variable_prefix_ + entry.name;
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return result;
}

void OptionTable::declare_all(CLI::App& app) const {
  for (const Entry& entry : entries_) {
    CLI::Option* option = entry.declare(app, flag_names(entry));
    option->description(help_of(entry.help, entry.rules));
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    if (entry.rules.has_variable) option->envname(variable_name(entry));
  }
}

template <typename Parse>
void OptionTable::parse_with(CLI::App& app, Parse parse) {
  try {
    parse();
  } catch (const CLI::CallForHelp&) {
    throw HelpRequested(app.help());
  } catch (const CLI::ParseError& error) {
    throw ConfigError("config", fmt::format("{}; {} --help lists the options", error.what(), app.get_name()));
  }
  given_.clear();
  for (const Entry& entry : entries_) {
    if (app.get_option("--" + entry.name)->count() > 0) given_.insert(entry.name);
  }
  validate();
}

void OptionTable::parse(int argc, const char* const* argv) {
  const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "program";
  CLI::App app(description_, program);
  declare_all(app);
  parse_with(app, [&] { app.parse(argc, argv); });
}

namespace {

// Whether the flag is followed by its value as an argument of its own.
bool takes_next(const CLI::App& app, const std::string& flag) {
  const bool is_long = flag.starts_with("--");
  if (is_long ? flag.find('=') != std::string::npos : flag.size() > 2) return false;
  const CLI::Option* option = app.get_option_no_throw(flag);
  return option != nullptr && option->get_expected_min() > 0;
}

size_t end_of_flags(const CLI::App& app, const std::vector<std::string>& arguments) {
  size_t i = 0;
  while (i < arguments.size() && arguments[i].size() > 1 && arguments[i].front() == '-' &&
         arguments[i] != "--") {
    i += takes_next(app, arguments[i]) ? 2 : 1;
  }
  return std::min(i, arguments.size());
}

}  // namespace

std::vector<std::string> OptionTable::parse_command(const std::string& program,
                                                    const std::vector<std::string>& arguments) {
  CLI::App app(description_, program);
  declare_all(app);
  const size_t end = end_of_flags(app, arguments);
  // CLI11 takes them last first.
  std::vector<std::string> flags(arguments.rend() - static_cast<std::ptrdiff_t>(end), arguments.rend());
  parse_with(app, [&] { app.parse(flags); });
  const size_t command = end < arguments.size() && arguments[end] == "--" ? end + 1 : end;
  return {arguments.begin() + static_cast<std::ptrdiff_t>(command), arguments.end()};
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
