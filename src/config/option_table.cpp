#include "config/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>

#include "base/nearest_name.h"
#include "config/flag_words.h"
#include "config/toml_file.h"

namespace lockstep::config {
namespace {

[[noreturn]] void expected(const char* what) { throw std::invalid_argument(what); }

template <typename Number>
std::optional<Number> whole_number(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

void assign(std::string& field, const Json& value) {
  if (!value.is_string()) expected("a string");
  field = value.get<std::string>();
}

void assign(bool& field, const Json& value) {
  if (!value.is_boolean()) expected("true or false");
  field = value.get<bool>();
}

template <std::signed_integral T>
void assign(T& field, const Json& value) {
  if (!value.is_number_integer()) expected("a whole number");
  if (!value.is_integer_of<T>()) {
    throw std::invalid_argument(fmt::format("a whole number from {} to {}", std::numeric_limits<T>::min(),
                                            std::numeric_limits<T>::max()));
  }
  field = value.get<T>();
}

void assign(uint64_t& field, const Json& value) {
  if (!value.is_integer_of<uint64_t>()) expected("a whole number that is not negative");
  field = value.get<uint64_t>();
}

void assign(double& field, const Json& value) {
  if (!value.is_number()) expected("a number");
  field = value.get<double>();
}

OffloadDevice device_named(const std::string& name) {
  if (const auto device = offload_device_named(name)) return *device;
  throw std::invalid_argument("none, cpu or nvme");
}

void assign(OffloadDevice& field, const Json& value) {
  field = device_named(value.is_string() ? value.get<std::string>() : "");
}

void assign(FreeValues& field, const Json& value) {
  if (!value.is_object()) expected("a table of values");
  FreeValues values;
  for (const auto& [name, inner] : value.items()) values[name] = free_value_of(inner);
  field = std::move(values);
}

template <typename T>
void assign(std::optional<T>& field, const Json& value) {
  T inner{};
  assign(inner, value);
  field = inner;
}

template <typename T>
Json json_of(const T& field) {
  return field;
}
Json json_of(const OffloadDevice& field) { return name_of(field); }
Json json_of(const FreeValues& field) {
  Json result = Json::object();
  for (const auto& [name, value] : field) {
    result[name] = std::visit([](const auto& inner) { return Json(inner); }, value);
  }
  return result;
}

// An optional without a value is null.
Json value_of(const Field& field) {
  return std::visit([](const auto* held) { return json_of(*held); }, field);
}

// std::invalid_argument describes the valid values.
void assign_value(const Field& field, const Json& value) {
  std::visit([&](auto* held) { assign(*held, value); }, field);
}

// "true", "3" and "0.5" become a boolean and numbers, every other text a string.
FreeValue parse_free_value(const std::string& text) {
  if (text == "true") return true;
  if (text == "false") return false;
  if (const auto integer = whole_number<int64_t>(text)) return *integer;
  if (const auto real = whole_number<double>(text)) return *real;
  return text;
}

constexpr std::string_view kConfigOption = "config";

std::string variable_of(std::string_view name, const std::string& prefix) {
  std::string result = prefix + std::string(name);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return result;
}

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// The choices that a user may write. The empty choice is the value of an option that is not set.
std::vector<std::string> choices_of(const OptionRules& rules) {
  std::vector<std::string> choices;
  std::copy_if(rules.choices.begin(), rules.choices.end(), std::back_inserter(choices),
               [](const std::string& choice) { return !choice.empty(); });
  return choices;
}

std::string help_of(const std::string& help, const OptionRules& rules) {
  if (rules.choices.empty()) return help;
  return fmt::format("{} ({})", help, fmt::join(choices_of(rules), ", "));
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

void check_choices(const std::string& name, const std::string& text, const OptionRules& rules) {
  const auto parts = rules.several ? split_at_commas(text) : std::vector<std::string>{text};
  const bool known = !parts.empty() && std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
    return std::find(rules.choices.begin(), rules.choices.end(), part) != rules.choices.end();
  });
  if (known) return;
  throw ConfigError("config",
                    fmt::format("{} must be one of {}{}: '{}'", name, fmt::join(choices_of(rules), ", "),
                                rules.several ? ", or a list of them separated by commas" : "", text));
}

// JSON has no literals for NaN and the infinities.
std::string text_of(const Json& value) {
  const bool is_finite = !value.is_number_float() || std::isfinite(value.get<double>());
  return is_finite ? value.dump() : fmt::format("{}", value.get<double>());
}

void check_rules(const std::string& name, const Json& value, const OptionRules& rules) {
  if (value.is_null()) return;
  if (!rules.choices.empty()) check_choices(name, value.get<std::string>(), rules);
  if (rules.maximum && value.is_number() && !(value.get<double>() <= *rules.maximum)) {
    throw ConfigError("config",
                      fmt::format("{} must be at most {}: {}", name, *rules.maximum, text_of(value)));
  }
  // Written so that NaN fails.
  if (rules.minimum && value.is_number() && !(value.get<double>() >= static_cast<double>(*rules.minimum))) {
    throw ConfigError("config",
                      fmt::format("{} must be at least {}: {}", name, *rules.minimum, text_of(value)));
  }
}

// Returns the error of a text that should be a whole number of type T. Empty: it is valid, and is
// rewritten for CLI11, which reads a number with a leading zero as octal.
template <typename T>
std::string complaint_about(std::string& text) {
  T number{};
  const char* end = text.data() + text.size();
  const auto [read_to, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::result_out_of_range) return "is out of range: '" + text + "'";
  if (error == std::errc() && read_to == end) {
    text = std::to_string(number);
    return {};
  }
  return std::string("must be a whole number") + (std::is_unsigned_v<T> ? " that is not negative" : "") +
         ": '" + text + "'";
}

// Without this check, CLI11 reads a number that is too large as the largest one, and -1 as a large one.
template <typename T>
void check_number(CLI::Option* option) {
  if constexpr (std::is_integral_v<T>) option->transform(CLI::Validator(&complaint_about<T>, ""));
}

template <typename T>
CLI::Option* declare(CLI::App& app, const std::string& names, T& field) {
  CLI::Option* option = app.add_option(names, field)->capture_default_str();
  check_number<T>(option);
  return option;
}

template <typename T>
CLI::Option* declare(CLI::App& app, const std::string& names, std::optional<T>& field) {
  CLI::Option* option = app.add_option(names, field)->capture_default_str();
  if (field) option->default_str(Json(*field).dump());
  check_number<T>(option);
  return option;
}

CLI::Option* declare(CLI::App& app, const std::string& names, bool& field) {
  return app.add_flag(names, field);
}

CLI::Option* declare(CLI::App& app, const std::string& names, OffloadDevice& field) {
  const auto read = [&field](const CLI::results_t& results) {
    field = device_named(results.back());  // check_choices() has seen it
    return true;
  };
  return app.add_option(names, read)->type_name("TEXT")->default_str(name_of(field));
}

// A repeatable option NAME=VALUE.
CLI::Option* declare(CLI::App& app, const std::string& names, FreeValues& field) {
  const auto read = [&field](const CLI::results_t& results) {
    for (const std::string& item : results) {
      const size_t equals = item.find('=');
      if (equals == std::string::npos || equals == 0) {
        throw CLI::ValidationError(fmt::format("'{}' is not NAME=VALUE", item));
      }
      field[item.substr(0, equals)] = parse_free_value(item.substr(equals + 1));
    }
    return true;
  };
  return app.add_option(names, read)->type_name("NAME=VALUE")->allow_extra_args(false);
}

// "; did you mean '--max-iter'?", or nothing.
std::string suggestion(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  for (const std::string& word : app.remaining()) {
    if (!word.starts_with("--")) continue;
    const auto nearest = base::nearest_name(word.substr(0, word.find('=')), flags);
    return nearest ? fmt::format("; did you mean '{}'?", *nearest) : "";
  }
  return {};
}

size_t end_of_flags(const CLI::App& app, const std::vector<std::string>& arguments) {
  size_t i = 0;
  while (i < arguments.size() && arguments[i].size() > 1 && arguments[i].front() == '-' &&
         arguments[i] != "--") {
    i += takes_next_word(app, arguments[i]) ? 2 : 1;
  }
  return std::min(i, arguments.size());
}

}  // namespace

FreeValue free_value_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_integer_of<int64_t>()) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  expected("true, false, a number or a string");
}

class OptionTable::Parser {
 public:
  Parser(OptionTable& table, const std::string& program) : table_(table), app_(table.description_, program) {}

  CLI::App& app() { return app_; }

  void declare_all() {
    for (const Entry& entry : table_.entries_) {
      CLI::Option* option =
          std::visit([&](auto* field) { return declare(app_, flag_names(entry), *field); }, entry.field);
      option->description(help_of(entry.help, entry.rules));
      if (entry.is_device()) {
        option->check(CLI::Validator(
            [&entry](const std::string& text) {
              check_choices(entry.name, text, entry.rules);
              return std::string();
            },
            ""));
      }
      // All free values are kept; of other options the last value is used.
      option->multi_option_policy(std::holds_alternative<FreeValues*>(entry.field)
                                      ? CLI::MultiOptionPolicy::TakeAll
                                      : CLI::MultiOptionPolicy::TakeLast);
      if (entry.rules.has_variable) option->envname(table_.variable_name(entry));
    }
  }

  template <typename Parse>
  void parse_with(Parse parse) {
    try {
      parse();
    } catch (const CLI::CallForHelp&) {
      throw HelpRequested(app_.help());
    } catch (const CLI::ParseError& error) {
      throw ConfigError("config", fmt::format("{}{}; {} --help lists the options", error.what(),
                                              suggestion(app_), app_.get_name()));
    }
    table_.given_.clear();
    for (const Entry& entry : table_.entries_) {
      if (app_.get_option("--" + entry.name)->count() > 0) table_.given_.insert(entry.name);
    }
    table_.validate();
  }

 private:
  OptionTable& table_;
  CLI::App app_;
};

OptionTable::OptionTable(std::string description, std::string variable_prefix)
    : description_(std::move(description)), variable_prefix_(std::move(variable_prefix)) {}

std::string OptionTable::flag_names(const Entry& entry) {
  std::string names = "--" + entry.name;
  const std::string dashed = with_dashes(entry.name);
  if (dashed != entry.name) names += ",--" + dashed;
  for (const std::string& alias : entry.rules.aliases) {
    names += ",--" + alias;
    if (with_dashes(alias) != alias) names += ",--" + with_dashes(alias);
  }
  if (!entry.rules.short_flag.empty()) names += ",-" + entry.rules.short_flag;
  if (entry.is_bool() && entry.rules.negatable) names += ",!--no_" + entry.name + ",!--no-" + dashed;
  return names;
}

std::string OptionTable::variable_name(const Entry& entry) const {
  return variable_of(entry.name, variable_prefix_);
}

void OptionTable::parse(int argc, const char* const* argv) {
  const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "program";
  Parser parser(*this, program);
  // Before the flags are declared, so that --help shows the values of the file as defaults.
  std::string file;
  if (has_config_file_) {
    file = config_path(argc, argv);
    if (!file.empty()) assign(read_toml_file(file), fmt::format("'{}'", file));
    parser.app()
        .add_option("--" + std::string(kConfigOption), file, "TOML file with these options as keys")
        ->envname(variable_of(kConfigOption, variable_prefix_));
  }
  parser.declare_all();
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  parser.parse_with([&] { parse_words(parser.app(), words); });
}

OptionTable& OptionTable::add_all(const OptionTable& other, const std::set<std::string>& without) {
  for (const Entry& entry : other.entries_) {
    if (without.count(entry.name) == 0) entries_.push_back(entry);
  }
  return *this;
}

OptionTable& OptionTable::add_config_file() {
  has_config_file_ = true;
  return *this;
}

std::string OptionTable::config_path(int argc, const char* const* argv) const {
  const std::string flag = "--" + std::string(kConfigOption);
  for (int i = argc - 1; i > 0; --i) {
    const std::string_view argument = argv[i];
    if (argument == flag && i + 1 < argc) return argv[i + 1];
    if (argument.starts_with(flag + "=")) return std::string(argument.substr(flag.size() + 1));
  }
  const char* variable = std::getenv(variable_of(kConfigOption, variable_prefix_).c_str());
  return variable != nullptr ? variable : "";
}

const OptionTable::Entry* OptionTable::find(const std::string& name) const {
  for (const Entry& entry : entries_) {
    const auto& aliases = entry.rules.aliases;
    if (entry.name == name || std::find(aliases.begin(), aliases.end(), name) != aliases.end()) return &entry;
  }
  return nullptr;
}

void OptionTable::assign(const Json& values, const std::string& source) {
  std::map<const Entry*, std::string> set_by;
  for (const auto& [key, value] : values.items()) {
    const Entry* entry = find(key);
    if (entry == nullptr) {
      throw ConfigError("config", fmt::format("{}: unknown option '{}'; the options are {}", source, key,
                                              fmt::join(names(), ", ")));
    }
    const auto [before, is_first] = set_by.emplace(entry, key);
    if (!is_first) {
      throw ConfigError("config", fmt::format("{}: '{}' and '{}' are the same option: set one", source,
                                              before->second, key));
    }
    if (entry->is_device() && value.is_string()) check_choices(key, value.get<std::string>(), entry->rules);
    try {
      assign_value(entry->field, value);
    } catch (const std::exception& expected) {
      throw ConfigError("config",
                        fmt::format("{}: {} must be {}: {}", source, key, expected.what(), value.dump()));
    }
  }
}

std::vector<std::string> OptionTable::names() const {
  std::vector<std::string> result;
  for (const Entry& entry : entries_) result.push_back(entry.name);
  return result;
}

std::vector<CompletionFlag> OptionTable::flags() const {
  std::vector<CompletionFlag> result;
  for (const Entry& entry : entries_) {
    CompletionFlag flag{.spellings = {},
                        .takes_value = !entry.is_bool(),
                        .choices = choices_of(entry.rules),
                        .help = entry.help};
    std::vector<std::string> names{entry.name};
    names.insert(names.end(), entry.rules.aliases.begin(), entry.rules.aliases.end());
    for (const std::string& name : names) {
      const std::string dashed = with_dashes(name);
      flag.spellings.push_back("--" + dashed);
      if (dashed != name) flag.spellings.push_back("--" + name);
    }
    if (!entry.rules.short_flag.empty()) flag.spellings.push_back("-" + entry.rules.short_flag);
    result.push_back(flag);
    if (!entry.is_bool() || !entry.rules.negatable) continue;
    flag.spellings = {"--no-" + with_dashes(entry.name)};
    if (with_dashes(entry.name) != entry.name) flag.spellings.push_back("--no_" + entry.name);
    flag.help = "not: " + entry.help;
    result.push_back(flag);
  }
  result.push_back(
      {.spellings = {"--help", "-h"}, .takes_value = false, .choices = {}, .help = "print the options"});
  return result;
}

std::vector<std::string> OptionTable::parse_command(const std::string& program,
                                                    const std::vector<std::string>& arguments) {
  Parser parser(*this, program);
  parser.declare_all();
  const size_t end = end_of_flags(parser.app(), arguments);
  const std::vector<std::string> flags(arguments.begin(),
                                       arguments.begin() + static_cast<std::ptrdiff_t>(end));
  parser.parse_with([&] { parse_words(parser.app(), flags); });
  const size_t command = end < arguments.size() && arguments[end] == "--" ? end + 1 : end;
  return {arguments.begin() + static_cast<std::ptrdiff_t>(command), arguments.end()};
}

void OptionTable::validate() const {
  for (const Entry& entry : entries_) check_rules(entry.name, value_of(entry.field), entry.rules);
}

Json OptionTable::to_json() const {
  Json result = Json::object();
  for (const Entry& entry : entries_) result[entry.name] = value_of(entry.field);
  return result;
}

}  // namespace lockstep::config
