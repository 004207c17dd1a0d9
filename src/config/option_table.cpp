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
#include <stdexcept>

#include "base/nearest_name.h"
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
void assign(std::vector<T>& field, const Json& value) {
  if (!value.is_array()) expected("a list");
  std::vector<T> values(value.size());
  for (size_t i = 0; i < values.size(); ++i) assign(values[i], value.at(i));
  field = std::move(values);
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
constexpr const char* kConfigHelp = "TOML file with these options as keys";

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

// "a,,b" has an empty part.
std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t comma = text.find(','); comma != std::string::npos; comma = text.find(',', begin)) {
    parts.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

void check_choices(const std::string& name, const std::string& text, const OptionRules& rules) {
  const auto parts = rules.several ? split_at_commas(text) : std::vector<std::string>{text};
  const bool known = std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
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
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) check_rules(name, value.at(i), rules);
    return;
  }
  if (value.is_null()) return;
  if (!rules.choices.empty()) check_choices(name, value.get<std::string>(), rules);
  if (rules.maximum && value.is_number() && !(value.get<double>() <= *rules.maximum)) {
    throw ConfigError("config",
                      fmt::format("{} must be at most {}: {}", name, *rules.maximum, text_of(value)));
  }
  // Written so that NaN fails.
  if (rules.minimum && value.is_number() && !(value.get<double>() >= *rules.minimum)) {
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

// A flag takes one word each time: the next one may be an argument without a flag. CLI11's own lists would
// skip empty parts.
template <typename T>
CLI::Option* declare_list(CLI::App& app, const std::string& names, std::vector<T>& field, bool several) {
  const std::string name = names.substr(0, names.find(','));
  const auto read = [&field, name, several](const CLI::results_t& results) {
    field.clear();
    for (const std::string& result : results) {
      for (std::string& part : several ? split_at_commas(result) : std::vector<std::string>{result}) {
        if constexpr (std::is_integral_v<T>) {
          const std::string complaint = complaint_about<T>(part);
          if (!complaint.empty()) throw CLI::ValidationError(name, complaint);
          field.push_back(*whole_number<T>(part));
        } else {
          field.push_back(std::move(part));
        }
      }
    }
    return true;
  };
  return app.add_option(names, read)
      ->type_name(std::is_integral_v<T> ? "INT" : "TEXT")
      ->default_str(fmt::format("{}", fmt::join(field, ",")))
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(!names.starts_with('-'));
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

bool is_flag(const std::string& word) { return word.size() > 1 && word.front() == '-'; }

// Whether the value of the flag is the next word.
bool takes_next_word(const CLI::App& app, const std::string& flag) {
  const bool is_long = flag.starts_with("--");
  if (is_long ? flag.find('=') != std::string::npos : flag.size() > 2) return false;
  const CLI::Option* option = app.get_option_no_throw(flag);
  return option != nullptr && option->get_expected_min() > 0;
}

// The option of a word "--flag="; null: the word has another form, or CLI11 reports the error.
const CLI::Option* option_without_value(const CLI::App& app, const std::string& word) {
  if (!word.starts_with("--") || word.find('=') != word.size() - 1) return nullptr;
  return app.get_option_no_throw(word.substr(0, word.size() - 1));
}

void check_takes_empty_text(const CLI::Option& option, const std::string& word) {
  if (option.get_type_name().starts_with("TEXT") && option.get_items_expected_max() == 1) return;
  throw CLI::ArgumentMismatch(fmt::format("{}: there is no value after the =", word));
}

// Replaces "--flag=" by two words, the flag and an empty one: CLI11 alone would take the next word as the
// value.
std::vector<std::string> with_empty_words(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> result;
  size_t i = 0;
  for (; i < words.size() && words[i] != "--"; ++i) {
    const std::string& word = words[i];
    if (const CLI::Option* const option = option_without_value(app, word)) {
      check_takes_empty_text(*option, word);
      result.insert(result.end(), {word.substr(0, word.size() - 1), ""});
      continue;
    }
    result.push_back(word);
    // A value may look like a flag.
    if (is_flag(word) && takes_next_word(app, word) && i + 1 < words.size()) result.push_back(words[++i]);
  }
  result.insert(result.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
  return result;
}

void parse_words(CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> all = with_empty_words(app, words);
  std::reverse(all.begin(), all.end());  // CLI11 expects them in reverse order
  app.parse(std::move(all));
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
  while (i < arguments.size() && is_flag(arguments[i]) && arguments[i] != "--") {
    i += takes_next_word(app, arguments[i]) ? 2 : 1;
  }
  return std::min(i, arguments.size());
}

// "4" for 4, "a,b" for a list, and "" for what --help need not show: unset, empty or off.
std::string default_text(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "on" : "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.is_null() || value.is_object() ? "" : text_of(value);
  std::vector<std::string> parts;
  for (size_t i = 0; i < value.size(); ++i) parts.push_back(default_text(value.at(i)));
  return fmt::format("{}", fmt::join(parts, ","));
}

class UsageFormatter : public CLI::Formatter {
 public:
  explicit UsageFormatter(bool starts_program) : starts_program_(starts_program) {}

  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string text = "\n" + CLI::Formatter::make_usage(app, std::move(name));
    if (!starts_program_) return text;
    return text.substr(0, text.find_last_not_of('\n') + 1) + " [--] PROGRAM [ARGUMENT...]\n";
  }

 private:
  bool starts_program_;
};

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
  Parser(OptionTable& table, const std::string& program, bool starts_program)
      : table_(table), app_(table.description_, program), starts_program_(starts_program) {
    app_.formatter(std::make_shared<UsageFormatter>(starts_program));
  }

  CLI::App& app() { return app_; }

  void declare_all() {
    for (const Entry& entry : table_.entries_) {
      CLI::Option* option = declare_entry(entry);
      option->description(help_of(entry.help, entry.rules))->required(entry.rules.required);
      // Of an option with one value the last one is used.
      option->multi_option_policy(entry.repeats() ? CLI::MultiOptionPolicy::TakeAll
                                                  : CLI::MultiOptionPolicy::TakeLast);
      if (const std::string variable = table_.variable_name(entry); !variable.empty()) {
        option->envname(variable);
      }
      if (entry.is_device()) {
        option->check(CLI::Validator(
            [&entry](const std::string& text) {
              check_choices(entry.name, text, entry.rules);
              return std::string();
            },
            ""));
      }
      options_.push_back(option);
    }
  }

  template <typename Parse>
  void parse_with(Parse parse) {
    try {
      parse();
    } catch (const CLI::CallForHelp&) {
      throw OptionsHelp(app_.help(), table_.description_, table_.usage(), starts_program_);
    } catch (const CLI::RequiredError& error) {
      // An unknown flag is reported first: it may be a misspelt name of what is missing.
      const std::vector<std::string> unknown = app_.remaining();
      refuse(unknown.empty() ? error.what() : CLI::ExtrasError(app_.get_name(), unknown).what());
    } catch (const CLI::ParseError& error) {
      refuse(error.what());
    }
    table_.given_.clear();
    for (size_t i = 0; i < options_.size(); ++i) {
      if (options_[i]->count() > 0) table_.given_.insert(table_.entries_[i].name);
    }
    table_.validate();
  }

 private:
  CLI::Option* declare_entry(const Entry& entry) {
    const std::string names = names_of(entry);
    return std::visit(
        [&]<typename T>(T* field) {
          if constexpr (std::is_same_v<T, std::vector<int>> || std::is_same_v<T, std::vector<std::string>>) {
            return declare_list(app_, names, *field, entry.rules.several);
          } else {
            return declare(app_, names, *field);
          }
        },
        entry.field);
  }

  [[noreturn]] void refuse(const std::string& error) const {
    throw ConfigError(
        "config", fmt::format("{}{}; {} --help lists the options", error, suggestion(app_), app_.get_name()));
  }

  OptionTable& table_;
  CLI::App app_;
  bool starts_program_;
  std::vector<CLI::Option*> options_;  // one for each entry
};

OptionTable::OptionTable(std::string description, std::string variable_prefix)
    : description_(std::move(description)), variable_prefix_(std::move(variable_prefix)) {}

std::string OptionTable::names_of(const Entry& entry) {
  if (!entry.is_flag) return entry.name;
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
  const bool has_variable = entry.is_flag && entry.rules.has_variable && !variable_prefix_.empty();
  return has_variable ? variable_of(entry.name, variable_prefix_) : "";
}

// A flag, a variable and a key of a file set an option of a table with variables.
std::string OptionTable::label(const Entry& entry) const {
  return entry.is_flag && variable_prefix_.empty() ? "--" + with_dashes(entry.name) : entry.name;
}

void OptionTable::parse(int argc, const char* const* argv) {
  const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "program";
  Parser parser(*this, program, /*starts_program=*/false);
  // Before the flags are declared, so that --help shows the values of the file as defaults.
  std::string file;
  if (has_config_file_) {
    file = config_path(argc, argv);
    if (!file.empty()) assign(read_toml_file(file), fmt::format("'{}'", file));
    parser.app()
        .add_option("--" + std::string(kConfigOption), file, kConfigHelp)
        ->envname(variable_of(kConfigOption, variable_prefix_));
  }
  parser.declare_all();
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  parser.parse_with([&] { parse_words(parser.app(), words); });
}

OptionTable& OptionTable::add_all(const OptionTable& other, const std::set<std::string>& without) {
  const auto is_left_out = [&](const std::string& name) { return without.count(name) != 0; };
  for (const Entry& entry : other.entries_) {
    const std::vector<std::string>& aliases = entry.rules.aliases;
    if (is_left_out(entry.name) || std::any_of(aliases.begin(), aliases.end(), is_left_out)) continue;
    entries_.push_back(entry);
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

std::vector<OptionUsage> OptionTable::usage() const {
  std::vector<OptionUsage> result;
  for (const Entry& entry : entries_) {
    OptionUsage usage{.spellings = {},
                      .is_flag = entry.is_flag,
                      .takes_value = !entry.is_bool(),
                      .required = entry.rules.required,
                      .repeats = entry.repeats(),
                      .choices = choices_of(entry.rules),
                      .default_value = default_text(value_of(entry.field)),
                      .variable = variable_name(entry),
                      .help = entry.help};
    if (!entry.is_flag) {
      usage.spellings = {entry.name};
      result.push_back(usage);
      continue;
    }
    std::vector<std::string> names{entry.name};
    names.insert(names.end(), entry.rules.aliases.begin(), entry.rules.aliases.end());
    for (const std::string& name : names) {
      const std::string dashed = with_dashes(name);
      usage.spellings.push_back("--" + dashed);
      if (dashed != name) usage.spellings.push_back("--" + name);
    }
    if (!entry.rules.short_flag.empty()) usage.spellings.push_back("-" + entry.rules.short_flag);
    result.push_back(usage);
    if (!entry.is_bool() || !entry.rules.negatable) continue;
    OptionUsage opposite{.spellings = {"--no-" + with_dashes(entry.name)}, .help = "not: " + entry.help};
    if (with_dashes(entry.name) != entry.name) opposite.spellings.push_back("--no_" + entry.name);
    result.push_back(opposite);
  }
  if (has_config_file_) {
    result.push_back({.spellings = {"--" + std::string(kConfigOption)},
                      .takes_value = true,
                      .variable = variable_of(kConfigOption, variable_prefix_),
                      .help = kConfigHelp});
  }
  result.push_back({.spellings = {"--help", "-h"}, .help = "print the options"});
  return result;
}

std::vector<std::string> OptionTable::parse_command(const std::string& program,
                                                    const std::vector<std::string>& arguments) {
  Parser parser(*this, program, /*starts_program=*/true);
  parser.declare_all();
  const size_t end = end_of_flags(parser.app(), arguments);
  const std::vector<std::string> flags(arguments.begin(),
                                       arguments.begin() + static_cast<std::ptrdiff_t>(end));
  parser.parse_with([&] { parse_words(parser.app(), flags); });
  const size_t command = end < arguments.size() && arguments[end] == "--" ? end + 1 : end;
  return {arguments.begin() + static_cast<std::ptrdiff_t>(command), arguments.end()};
}

void OptionTable::validate() const {
  for (const Entry& entry : entries_) check_rules(label(entry), value_of(entry.field), entry.rules);
}

Json OptionTable::to_json() const {
  Json result = Json::object();
  for (const Entry& entry : entries_) result[entry.name] = value_of(entry.field);
  return result;
}

}  // namespace lockstep::config
