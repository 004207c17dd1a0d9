#pragma once

#include <lockstep/deepspeed_config.h>

#include <lockstep/json.h>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "config/hjson.h"
#include "deepspeed/value.h"

namespace lockstep::deepspeed {

// A key of DeepSpeed's configuration: one row of the table from which reading, checks,
// suggestions, the printed configuration and the table of docs/deepspeed.md come.
struct Key {
  enum class Kind {
    kHonoured,  // a field of DeepSpeedConfig
    kFixed,     // one of `values`, which say what happens here anyway
    kRefused,   // off, or an error
  };

  std::string path = {};  // "zero_optimization.stage"
  Kind kind = Kind::kHonoured;
  std::string text = {};                   // what it means; why it is fixed or refused
  std::vector<std::string> aliases = {};   // other last parts of the path
  std::vector<std::string> values = {};    // kFixed: in JSON, the default first
  std::vector<std::string> switches = {};  // kRefused: members that turn it on; none: any member does
  uint32_t types = ~0U;                    // of optimizer.params and scheduler.params: whose it is
  // kHonoured. Reading throws std::invalid_argument with what was expected.
  std::function<void(DeepSpeedConfig&, const config::HjsonNode&)> read = {};
  // None for the old name of another key.
  std::function<Json(const DeepSpeedConfig&)> write = {};

  std::string name() const { return path.substr(path.rfind('.') + 1); }
  std::string section() const {
    const size_t dot = path.rfind('.');
    return dot == std::string::npos ? "" : path.substr(0, dot);
  }
};

template <typename Type>
uint32_t type_bit(Type type) {
  return uint32_t{1} << static_cast<int>(type);
}

struct KeyRules {
  Range range = {};
  std::vector<std::string> aliases = {};
  uint32_t types = ~0U;
};

// Adds the keys of a section to the table. S is its struct; `get` is a lambda from a config,
// constant or not, to the struct in it.
template <typename S>
class Section {
 public:
  template <typename Get>
  Section(std::vector<Key>& keys, std::string path, Get)
      : keys_(keys),
        path_(std::move(path)),
        get_([](DeepSpeedConfig& config) -> S& { return Get{}(config); }),
        get_constant_([](const DeepSpeedConfig& config) -> const S& { return Get{}(config); }) {}

  template <typename T>
  Section& honour(const std::string& name, T S::*field, std::string text, KeyRules rules = {}) {
    Key key = named(name, Key::Kind::kHonoured, std::move(text));
    key.aliases = std::move(rules.aliases);
    key.types = rules.types;
    key.read = [get = get_, field, range = rules.range](DeepSpeedConfig& config,
                                                        const config::HjsonNode& node) {
      get(config).*field = read_value<T>(node, range);
    };
    key.write = [get = get_constant_, field](const DeepSpeedConfig& config) {
      return write_value(get(config).*field);
    };
    keys_.push_back(std::move(key));
    return *this;
  }

  Section& fix(const std::string& name, std::vector<std::string> values, std::string why,
               KeyRules rules = {}) {
    Key key = named(name, Key::Kind::kFixed, std::move(why));
    key.values = std::move(values);
    key.aliases = std::move(rules.aliases);
    key.types = rules.types;
    keys_.push_back(std::move(key));
    return *this;
  }

  Section& refuse(const std::string& name, std::vector<std::string> switches, std::string why) {
    Key key = named(name, Key::Kind::kRefused, std::move(why));
    key.switches = std::move(switches);
    keys_.push_back(std::move(key));
    return *this;
  }

  // The old name of something that has another key now.
  Section& rename(const std::string& name, std::string text,
                  std::function<void(DeepSpeedConfig&, const config::HjsonNode&)> read) {
    Key key = named(name, Key::Kind::kHonoured, std::move(text));
    key.read = std::move(read);
    keys_.push_back(std::move(key));
    return *this;
  }

 private:
  Key named(const std::string& name, Key::Kind kind, std::string text) const {
    Key key;
    key.path = path_.empty() ? name : path_ + "." + name;
    key.kind = kind;
    key.text = std::move(text);
    return key;
  }

  std::vector<Key>& keys_;
  std::string path_;
  S& (*get_)(DeepSpeedConfig&);
  const S& (*get_constant_)(const DeepSpeedConfig&);
};

// The parts of the table, and all of it in the order in which it is printed.
void add_training_keys(std::vector<Key>& keys);
void add_optimizer_keys(std::vector<Key>& keys);
void add_scheduler_keys(std::vector<Key>& keys);
void add_precision_keys(std::vector<Key>& keys);
void add_zero_keys(std::vector<Key>& keys);
void add_output_keys(std::vector<Key>& keys);
void add_refused_keys(std::vector<Key>& keys);
const std::vector<Key>& all_keys();

// The types whose parameter a key of optimizer.params or scheduler.params is; empty for
// every other key.
std::vector<std::string> type_names(const Key& key);

// Sets the fields whose defaults depend on the type.
void set_type_defaults(DeepSpeedConfig::Optimizer& optimizer);
void set_type_defaults(DeepSpeedConfig::Scheduler& scheduler);
// Why DeepSpeed's optimizer of this name is not here; empty: nobody knows it.
std::string refused_optimizer(const std::string& name);

}  // namespace lockstep::deepspeed
