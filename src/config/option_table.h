#pragma once

#include <lockstep/error.h>
#include <lockstep/json.h>
#include <lockstep/zero.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace lockstep::config {

// Values under names that the user chooses: --hyperparams lr=0.1 --hyperparams net=cnn.
using FreeValue = std::variant<bool, int64_t, double, std::string>;
using FreeValues = std::map<std::string, FreeValue>;

// std::invalid_argument: neither a boolean nor a number nor a string.
FreeValue free_value_of(const Json& value);

// A pointer to a field of a struct. These are the types of options.
using Field = std::variant<std::string*, bool*, int*, int64_t*, uint64_t*, double*, std::optional<int>*,
                           std::optional<int64_t>*, std::optional<double>*, std::optional<std::string>*,
                           std::vector<int>*, std::vector<std::string>*, FreeValues*, OffloadDevice*>;

// The valid values of an option and its other names. A vector has one value for each time that its flag is
// given; each value is checked.
struct OptionRules {
  std::vector<std::string> choices = {};  // text options; empty: any; devices always have them
  bool several = false;                   // text options and vectors: a value is a list separated by commas
  std::optional<double> minimum = {};     // numeric options
  std::optional<double> maximum = {};     // numeric options
  bool required = false;                  // a ConfigError if it is not given
  std::string short_flag = {};            // one letter: -n
  bool negatable = true;                  // a bool also has --no_name
  bool has_variable = true;               // false: no environment variable sets it
  std::vector<std::string> aliases = {};  // other names, of flags and of keys in a file
};

// What a user may write for one option: for help pages and shell completion.
struct OptionUsage {
  // A flag: "--log-dir", "--log_dir", "-n", the preferred spelling first. An argument without a flag:
  // "FOLDER".
  std::vector<std::string> spellings = {};
  bool is_flag = true;
  bool takes_value = false;
  bool required = false;
  bool repeats = false;                   // may be given more than once; every value counts
  std::vector<std::string> choices = {};  // of the value; empty: any
  std::string default_value = {};         // empty: none, or off
  std::string variable = {};              // that sets it too; empty: none
  std::string help = {};

  bool operator==(const OptionUsage&) const = default;
};

// The help of a table: the text, and the same as data.
class OptionsHelp : public HelpRequested {
 public:
  OptionsHelp(const std::string& text, std::string description, std::vector<OptionUsage> options,
              bool starts_program)
      : HelpRequested(text),
        description(std::move(description)),
        options(std::move(options)),
        starts_program(starts_program) {}

  std::string description;
  std::vector<OptionUsage> options;
  bool starts_program;  // the words after the options are a program and its arguments
};

// The variable_prefix of a table whose options have no environment variables.
inline constexpr const char* kNoVariables = "";

// The options of one struct. Name, help, rules and field of an option are declared once; flags,
// environment variables, checks, help text and the printed configuration are derived from them. The table
// points to the fields of the struct and must not outlive it.
//
// An option `max_iter` has the flags --max_iter and --max-iter and the variable
// LOCKSTEP_MAX_ITER; a bool also --no_verbose and --no-verbose. --name= with nothing behind it is an
// empty text, and an error where the option is no text; it never takes the word behind it. Errors name an
// option of a table without variables by its flag.
class OptionTable {
 public:
  explicit OptionTable(std::string description, std::string variable_prefix = "LOCKSTEP_");

  // T is one of the types of Field.
  template <typename T>
  OptionTable& add(const std::string& name, T& field, const std::string& help, OptionRules rules = {}) {
    entries_.push_back({name, help, &field, std::move(rules), /*is_flag=*/true});
    return *this;
  }

  // Adds an argument without a flag: the next word that belongs to no flag, or for a vector all of them.
  // `name` is in capitals.
  template <typename T>
  OptionTable& add_argument(const std::string& name, T& field, const std::string& help,
                            OptionRules rules = {}) {
    entries_.push_back({name, help, &field, std::move(rules), /*is_flag=*/false});
    return *this;
  }

  // Adds the options of another table except those named in `without`, which this table declares with
  // another meaning or other choices.
  OptionTable& add_all(const OptionTable& other, const std::set<std::string>& without = {});

  // Adds the flag --config FILE (variable LOCKSTEP_CONFIG): a TOML file whose keys are options. Variables
  // and flags override it.
  OptionTable& add_config_file();

  // Reads file, variables and flags into the fields, then validates. ConfigError: an unknown flag, with a
  // suggestion, or an invalid value. OptionsHelp: --help.
  void parse(int argc, const char* const* argv);
  // The same for a command that starts a program: the flags end before the first other argument, or at
  // "--". Returns the arguments after the flags. `program` is the name of the command in messages;
  // `arguments` begin after it.
  std::vector<std::string> parse_command(const std::string& program,
                                         const std::vector<std::string>& arguments);
  // Sets fields by name. ConfigError names `source`, the key, the value and the valid values; earlier
  // fields are set by then.
  void assign(const Json& values, const std::string& source);
  // After a parse: whether a flag or a variable set this option.
  bool given(const std::string& name) const { return given_.count(name) > 0; }
  // ConfigError names the first option with an invalid value.
  void validate() const;
  Json to_json() const;
  // The names of all options, in the order of the table.
  std::vector<std::string> names() const;
  // Every option in the order of the table, the dashed spelling first, and --help.
  std::vector<OptionUsage> usage() const;

 private:
  struct Entry {
    std::string name;
    std::string help;
    Field field;
    OptionRules rules;
    bool is_flag;

    bool is_bool() const { return std::holds_alternative<bool*>(field); }
    bool is_vector() const {
      return std::holds_alternative<std::vector<int>*>(field) ||
             std::holds_alternative<std::vector<std::string>*>(field);
    }
    // Whether each value counts, instead of the last one.
    bool repeats() const { return is_vector() || std::holds_alternative<FreeValues*>(field); }
    bool is_device() const { return std::holds_alternative<OffloadDevice*>(field); }
  };
  // Wraps CLI11, which adds seconds to the compilation of every source that includes it.
  class Parser;

  static std::string names_of(const Entry& entry);
  const Entry* find(const std::string& name_or_alias) const;
  // Empty: no variable sets it.
  std::string variable_name(const Entry& entry) const;
  // How errors name the option.
  std::string label(const Entry& entry) const;
  std::string config_path(int argc, const char* const* argv) const;

  std::string description_;
  std::string variable_prefix_;
  bool has_config_file_ = false;
  std::set<std::string> given_;
  std::vector<Entry> entries_;
};

}  // namespace lockstep::config
