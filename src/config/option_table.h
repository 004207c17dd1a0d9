#pragma once

#include <lockstep/json.h>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/completion.h"
#include "config/option_value.h"

namespace lockstep::config {

// What a value may be, whoever set it.
struct OptionRules {
  std::vector<std::string> choices = {};  // text options; empty: any
  bool several = false;                   // text options: choices with commas between them
  std::optional<int64_t> minimum = {};    // numeric options
  std::optional<double> maximum = {};     // numeric options
  std::string short_flag = {};            // one letter: -n
  bool negatable = true;                  // a bool also has --no_name
  bool has_variable = true;               // false: by flag only
  std::vector<std::string> aliases = {};  // other names, as flags and as keys of a file
};

// The options of one struct: name, help, rules and field declared once, from which
// flags, environment variables, checks, help text and the printed configuration
// come. The table refers to the struct's fields: it must not outlive them.
//
// An option `max_iter` has the flags --max_iter and --max-iter and the variable
// LOCKSTEP_MAX_ITER; a bool also --no_verbose and --no-verbose.
class OptionTable {
 public:
  explicit OptionTable(std::string description, std::string variable_prefix = "LOCKSTEP_");

  // The field's type is one of config::Field.
  template <typename T>
  OptionTable& add(const std::string& name, T& field, const std::string& help, OptionRules rules = {}) {
    entries_.push_back({name, help, &field, std::move(rules)});
    return *this;
  }

  // Adds the options of another table, but those named in `without`: the table that takes
  // them has its own, with another meaning or other choices.
  OptionTable& add_all(const OptionTable& other, const std::set<std::string>& without = {});

  // Adds the flag --config FILE (variable LOCKSTEP_CONFIG): a TOML file with options
  // as its keys. Whatever it sets, variables and flags may set otherwise.
  OptionTable& add_config_file();

  // Reads file, variables and flags into the fields, then validates. ConfigError: an
  // unknown flag, with what it may have been meant to be, or a bad value; HelpRequested:
  // --help.
  void parse(int argc, const char* const* argv);
  // The same for a command that starts another: flags end at the first argument that
  // is none, or after "--". Returns what follows them. program is the command's name
  // in messages; arguments begin after it.
  std::vector<std::string> parse_command(const std::string& program,
                                         const std::vector<std::string>& arguments);
  // Sets fields by name. ConfigError names `source`, the key, the value and what is
  // allowed; the fields before it are set by then.
  void assign(const Json& values, const std::string& source);
  // After a parse: whether a flag or a variable set this option.
  bool given(const std::string& name) const { return given_.count(name) > 0; }
  // ConfigError names the first option whose value breaks its rules.
  void validate() const;
  Json to_json() const;
  // The names of all options, in the order of the table.
  std::vector<std::string> names() const;
  // Every flag with its spellings, the dashed one first, and --help.
  std::vector<CompletionFlag> flags() const;

 private:
  struct Entry {
    std::string name;
    std::string help;
    Field field;
    OptionRules rules;

    bool is_bool() const { return std::holds_alternative<bool*>(field); }
  };
  // What reads flags: CLI11, which costs every source that includes it seconds.
  class Parser;

  static std::string flag_names(const Entry& entry);
  const Entry* find(const std::string& name_or_alias) const;
  std::string variable_name(const Entry& entry) const;
  std::string config_path(int argc, const char* const* argv) const;

  std::string description_;
  std::string variable_prefix_;
  bool has_config_file_ = false;
  std::set<std::string> given_;
  std::vector<Entry> entries_;
};

}  // namespace lockstep::config
