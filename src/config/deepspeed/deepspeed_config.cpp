#include <fmt/format.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/error.h>
#include <lockstep/json.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string_view>

#include "base/nearest_name.h"
#include "config/deepspeed/failure.h"
#include "config/deepspeed/keys.h"
#include "config/hjson.h"

namespace lockstep::deepspeed {
namespace {

using config::HjsonMember;
using config::HjsonNode;
using Kind = HjsonNode::Kind;

// Other names of whole sections.
constexpr std::pair<std::string_view, std::string_view> kSectionAliases[] = {{"bfloat16", "bf16"}};

std::string joined(std::string_view section, std::string_view name) {
  return section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
}

const Key* find_key(const std::string& section, const std::string& name) {
  for (const Key& key : all_keys()) {
    if (key.section() != section) continue;
    if (key.name() == name || std::count(key.aliases.begin(), key.aliases.end(), name) > 0) return &key;
  }
  return nullptr;
}

bool is_section(std::string_view path) {
  return std::any_of(all_keys().begin(), all_keys().end(), [&](const Key& key) {
    return key.path.size() > path.size() && key.path.starts_with(path) && key.path[path.size()] == '.';
  });
}

bool is_path(std::string_view path) {
  return std::any_of(all_keys().begin(), all_keys().end(), [&](const Key& key) { return key.path == path; });
}

bool is_auto(const HjsonNode& node) { return node.kind == Kind::kText && node.text == "auto"; }

// Whether a member enables its section.
bool is_on(const std::string& name, const HjsonNode& node) {
  if (node.kind == Kind::kNull || is_auto(node)) return false;
  if (node.kind == Kind::kBool) return node.truth;
  // A size of one rank splits nothing.
  return !equals_json(node, "0") && !(name == "autotp_size" && equals_json(node, "1"));
}

bool is_off(const Key& key, const HjsonNode& node) {
  if (node.kind == Kind::kNull || equals_json(node, "false") || equals_json(node, "{}")) return true;
  if (node.kind != Kind::kObject || key.switches.empty()) return false;
  return std::none_of(key.switches.begin(), key.switches.end(), [&](const std::string& name) {
    const HjsonNode* member = node.find(name);
    return member != nullptr && is_on(name, *member);
  });
}

// Reads a document key by key, by the table of keys.h. ConfigError names file, line and column.
// DeepSpeedConfig::validate() checks combinations of values.
class Reader {
 public:
  explicit Reader(std::string_view name) : name_(name) { config_.places[""] = name; }

  DeepSpeedConfig read(const HjsonNode& root) {
    read_type(root, "optimizer", config_.optimizer);
    read_type(root, "scheduler", config_.scheduler);
    read_section(root, "");
    return std::move(config_);
  }

 private:
  // Reads the type before everything else, because defaults and parameters depend on it.
  template <typename Typed>
  void read_type(const HjsonNode& root, const char* section, Typed& typed) {
    const HjsonNode* object = root.find(section);
    if (object == nullptr || object->kind != Kind::kObject) return;
    const HjsonNode* type = object->find("type");
    if (type == nullptr || type->kind == Kind::kNull) {
      const HjsonNode* params = object->find("params");
      if (params == nullptr || params->members.empty()) return;
      fail(object->place,
           fmt::format("{}.params is set without {}.type, which the parameters depend on", section, section));
    }
    const std::string reason = type->kind == Kind::kText ? refused_optimizer(type->text) : "";
    if (!reason.empty() && object == root.find("optimizer")) {
      fail(type->place, fmt::format("optimizer.type {} is not supported: {}", shown(*type), reason));
    }
    typed.type = value<decltype(typed.type)>(fmt::format("{}.type", section), *type);
    set_type_defaults(typed);
  }

  template <typename T>
  T value(const std::string& path, const HjsonNode& node) const {
    try {
      return read_value<T>(node, {});
    } catch (const std::invalid_argument& expected) {
      fail_value(path, node, expected.what());
    }
  }

  void read_section(const HjsonNode& object, const std::string& section) {
    for (const HjsonMember& member : object.members) {
      const Key* key = find_key(section, member.key);
      const std::string path = path_of(section, member);
      if (key != nullptr) {
        check_type(*key, member);
        read_key(*key, member);
      } else if (member.key.find('.') == std::string::npos && is_section(path)) {
        read_inner_section(path, member);
      } else {
        fail_unknown(section, member);
      }
    }
  }

  static std::string path_of(const std::string& section, const HjsonMember& member) {
    for (const auto& [alias, name] : kSectionAliases) {
      if (section.empty() && member.key == alias) return std::string(name);
    }
    return joined(section, member.key);
  }

  void read_inner_section(const std::string& path, const HjsonMember& member) {
    note_place(path, member);
    const HjsonNode& node = member.value;
    if (node.kind == Kind::kNull) return;
    if (path == "zero_optimization" && node.kind == Kind::kBool) {
      config_.zero.stage = node.truth ? 1 : 0;
      return;
    }
    if (node.kind != Kind::kObject) fail_value(path, node, "an object");
    read_section(node, path);
  }

  void read_key(const Key& key, const HjsonMember& member) {
    const HjsonNode& node = member.value;
    const auto accepts = [&](const std::string& value) { return equals_json(node, value); };
    const bool accepted = std::any_of(key.values.begin(), key.values.end(), accepts);
    if (key.kind == Key::Kind::kRefused) {
      if (!is_off(key, node)) fail(member.place, fmt::format("{} is not supported: {}", key.path, key.text));
    } else if (is_auto(node) && !accepted && !is_type(key)) {
      note_auto(key);
      return;
    } else if (key.kind == Key::Kind::kFixed) {
      if (!accepted) {
        fail(node.place, fmt::format("{} can only be {} here, not {}: {}", key.path,
                                     fmt::join(key.values, " or "), shown(node), key.text));
      }
    } else if (!(is_type(key) && node.kind == Kind::kNull)) {
      try {
        key.read(config_, node);
      } catch (const std::invalid_argument& expected) {
        fail_value(key.path, node, expected.what());
      }
    }
    note_place(key.path, member);
  }

  static bool is_type(const Key& key) { return key.path == "optimizer.type" || key.path == "scheduler.type"; }

  void note_auto(const Key& key) {
    const std::string value = key.kind == Key::Kind::kFixed ? key.values[0]
                              : key.write                   ? key.write(config_).dump()
                                                            : "null";
    config_.auto_values.push_back({key.path, value});
  }

  void note_place(const std::string& path, const HjsonMember& member) {
    const std::string place = fmt::format("{}:{}:{}", name_, member.place.line, member.place.column);
    const auto [other, is_new] = config_.places.try_emplace(path, place);
    if (is_new) return;
    fail(member.place, fmt::format("{} sets {}, which is already set at {}: remove one of the two",
                                   config::quoted_for_message(member.key), path, other->second));
  }

  bool is_for_type(const Key& key) const {
    if (key.section() == "optimizer.params") return (key.types & type_bit(config_.optimizer.type)) != 0;
    if (key.section() == "scheduler.params") return (key.types & type_bit(config_.scheduler.type)) != 0;
    return true;
  }

  void check_type(const Key& key, const HjsonMember& member) const {
    if (is_for_type(key)) return;
    const bool is_optimizer = key.section() == "optimizer.params";
    const std::string type = is_optimizer ? write_value(config_.optimizer.type).get<std::string>()
                                          : write_value(config_.scheduler.type).get<std::string>();
    fail(member.place, fmt::format("{} is not a parameter of {}: it belongs to {}", key.path, type,
                                   fmt::join(type_names(key), ", ")));
  }

  [[noreturn]] void fail_unknown(const std::string& section, const HjsonMember& member) const {
    std::set<std::string> names;
    std::string elsewhere;
    for (const Key& key : all_keys()) {
      if (key.name() == member.key && elsewhere.empty()) elsewhere = key.section();
      const std::string prefix = section.empty() ? "" : section + ".";
      if (!key.path.starts_with(prefix) || !is_for_type(key)) continue;
      const std::string rest = key.path.substr(prefix.size());
      names.insert(rest.substr(0, rest.find('.')));
      if (key.section() == section) names.insert(key.aliases.begin(), key.aliases.end());
    }
    const auto near = base::nearest_name(member.key, {names.begin(), names.end()});
    std::string hint;
    if (const size_t dot = member.key.rfind('.');
        dot != std::string::npos && is_path(joined(section, member.key))) {
      hint = fmt::format("; write it as {} in {}", member.key.substr(dot + 1),
                         joined(section, member.key.substr(0, dot)));
    } else if (!elsewhere.empty()) {
      hint = fmt::format("; it belongs in {}", elsewhere);
    } else if (near) {
      hint = fmt::format("; did you mean '{}'?", *near);
    }
    fail(member.place, fmt::format("unknown key {}{}{}", config::quoted_for_message(member.key),
                                   section.empty() ? "" : " in " + section, hint));
  }

  [[noreturn]] void fail_value(const std::string& path, const HjsonNode& node,
                               std::string_view expected) const {
    fail(node.place, fmt::format("{} must be {}: {}", path, expected, shown(node)));
  }

  [[noreturn]] void fail(const config::TextPlace& place, const std::string& sentence) const {
    throw ConfigError("deepspeed", fmt::format("{}:{}:{}: {}", name_, place.line, place.column, sentence));
  }

  std::string_view name_;
  DeepSpeedConfig config_;
};

}  // namespace
}  // namespace lockstep::deepspeed

namespace lockstep {
namespace {

// Sets the fields whose defaults depend on other keys.
void set_dependent_defaults(DeepSpeedConfig& config) {
  // torch's AdamW has another default.
  DeepSpeedConfig::Optimizer& optimizer = config.optimizer;
  const bool is_torch_adamw = optimizer.torch_adam && optimizer.decouples_weight_decay();
  if (is_torch_adamw && config.places.count("optimizer.params.weight_decay") == 0)
    optimizer.weight_decay = 0.01;
  if (config.flops_profiler.enabled) config.wall_clock_breakdown = true;
}

bool is_printed(const deepspeed::Key& key, const DeepSpeedConfig& config) {
  if (!key.write) return false;
  if (key.path.starts_with("optimizer.")) {
    return config.optimizer.exists() && (key.types & deepspeed::type_bit(config.optimizer.type)) != 0;
  }
  if (key.path.starts_with("scheduler.")) {
    return config.scheduler.exists() && (key.types & deepspeed::type_bit(config.scheduler.type)) != 0;
  }
  return true;
}

}  // namespace

DeepSpeedConfig DeepSpeedConfig::from_file(const std::filesystem::path& path) {
  const config::HjsonSource source = config::read_hjson_file(path);
  return from_text(source.text, source.name);
}

DeepSpeedConfig DeepSpeedConfig::from_text(std::string_view text, std::string_view name) {
  DeepSpeedConfig config = deepspeed::Reader(name).read(config::parse_hjson(text, name));
  set_dependent_defaults(config);
  config.validate();
  return config;
}

DeepSpeedConfig DeepSpeedConfig::from_argument(const std::string& path_or_base64) {
  const config::HjsonSource source = config::read_hjson_argument(path_or_base64);
  return from_text(source.text, source.name);
}

Json DeepSpeedConfig::to_json() const {
  Json result = Json::object();
  for (const deepspeed::Key& key : deepspeed::all_keys()) {
    if (!is_printed(key, *this)) continue;
    Json* place = &result;
    for (size_t begin = 0, dot = 0; dot != std::string::npos; begin = dot + 1) {
      dot = key.path.find('.', begin);
      place = &(*place)[key.path.substr(begin, dot - begin)];
    }
    *place = key.write(*this);
  }
  return result;
}

}  // namespace lockstep
