#pragma once

#include <lockstep/deepspeed_config.h>
#include <lockstep/json.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/deepspeed/value.h"
#include "config/hjson.h"

namespace lockstep::deepspeed {

// A key of DeepSpeed's configuration: one row of the table that drives reading, checks, suggestions, the
// printed configuration and the table in docs/deepspeed.md.
struct Key {
  enum class Kind {
    kHonoured,  // a field of DeepSpeedConfig
    kFixed,     // must be one of `values`, which describe what Lockstep does
    kRefused,   // not supported: enabling it is an error
  };

  std::string path = {};  // "zero_optimization.stage"
  Kind kind = Kind::kHonoured;
  std::string text = {};                   // its meaning, or why it is fixed or refused
  std::vector<std::string> aliases = {};   // other names, for the last part of the path
  std::vector<std::string> values = {};    // kFixed: as JSON, the default first
  std::vector<std::string> switches = {};  // kRefused: the members that enable it; empty: any member
  uint32_t types = ~0U;                    // optimizer.params and scheduler.params: the types that have it
  // kHonoured. read throws std::invalid_argument with a description of valid values.
  std::function<void(DeepSpeedConfig&, const config::HjsonNode&)> read = {};
  // Empty for the old name of another key.
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

// The table, in the order in which it is printed.
const std::vector<Key>& all_keys();

// The names of the types that have a key of optimizer.params or scheduler.params; empty for other keys.
std::vector<std::string> type_names(const Key& key);

// Sets the fields whose defaults depend on the type.
void set_type_defaults(DeepSpeedConfig::Optimizer& optimizer);
void set_type_defaults(DeepSpeedConfig::Scheduler& scheduler);
// Why an optimizer of DeepSpeed is not supported; empty: there is no such optimizer.
std::string refused_optimizer(const std::string& name);

}  // namespace lockstep::deepspeed
