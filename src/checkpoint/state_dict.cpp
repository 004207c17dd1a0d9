#include "checkpoint/state_dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/pickle_values.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::array<std::string_view, 4> kNestedKeys = {"state_dict", "model_state_dict", "model", "module"};
constexpr size_t kMaxListedKeys = 10;

bool has_tensors(ValueRef value) {
  const Dict* dict = value == nullptr ? nullptr : value->as<Dict>();
  return dict != nullptr && std::any_of(dict->items.begin(), dict->items.end(), [](const auto& item) {
           return item.second->template as<TensorReference>() != nullptr;
         });
}

// The dict with the weights; null: there is none.
ValueRef locate(ValueRef root) {
  if (const Dict* dict = root->as<Dict>()) {
    for (const std::string_view key : kNestedKeys) {
      if (ValueRef nested = find_member(*dict, key); has_tensors(nested)) return nested;
    }
    return has_tensors(root) ? root : nullptr;
  }
  if (const Tuple* tuple = root->as<Tuple>()) {  // (iteration, state_dict)
    const auto found = std::find_if(tuple->items.begin(), tuple->items.end(), has_tensors);
    return found == tuple->items.end() ? nullptr : *found;
  }
  return nullptr;
}

std::string content_text(ValueRef root) {
  if (root->as<TensorReference>() != nullptr) return "a single tensor without a name";
  const Dict* dict = root->as<Dict>();
  if (dict == nullptr) return "no dict";
  std::string keys;
  for (size_t i = 0; i < std::min(dict->items.size(), kMaxListedKeys); ++i) {
    const auto* text = dict->items[i].first->as<std::string>();
    keys += fmt::format("{}'{}'", i == 0 ? "" : ", ", text == nullptr ? "(no text)" : text->substr(0, 80));
  }
  return fmt::format("a dict with {} keys: {}", dict->items.size(), keys);
}

// --- TorchScript ---

// Levels of modules in modules: real networks have about five. Each level needs stack.
constexpr int kMaxModuleDepth = 200;
// A module under two names is visited twice: a small file can describe very many modules.
constexpr size_t kMaxScriptModules = size_t{1} << 20;
constexpr size_t kMaxScriptNameBytes = size_t{64} << 20;
constexpr size_t kMaxQuotedPathBytes = 200;

// The attributes of a class, from its source.
struct ScriptClass {
  bool is_module = false;
  bool has_setstate = false;
  std::vector<std::string> parameters = {};
  std::vector<std::string> buffers = {};
};

// The quoted texts of a line such as `  __parameters__ = ["weight", "bias", ]`.
std::vector<std::string> quoted_texts(std::string_view line) {
  std::vector<std::string> texts;
  for (size_t begin = line.find('"'); begin != std::string_view::npos; begin = line.find('"', begin)) {
    const size_t end = line.find('"', begin + 1);
    if (end == std::string_view::npos) break;
    texts.emplace_back(line.substr(begin + 1, end - begin - 1));
    begin = end + 1;
  }
  return texts;
}

// A class in the source that torch.jit.save writes, where an unindented line begins a class.
ScriptClass parse_class(std::string_view source, std::string_view name) {
  constexpr std::string_view kClass = "class ", kParameters = "  __parameters__ = [",
                             kBuffers = "  __buffers__ = [", kSetState = "  def __setstate__(";
  const std::string module_line = fmt::format("class {}(Module):", name);
  ScriptClass result;
  for (size_t begin = 0; begin < source.size();) {
    const size_t end = std::min(source.find('\n', begin), source.size());
    const std::string_view line = source.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with(kClass)) {
      if (result.is_module) break;
      result.is_module = line == module_line;
    }
    if (!result.is_module) continue;
    if (line.starts_with(kParameters)) result.parameters = quoted_texts(line);
    if (line.starts_with(kBuffers)) result.buffers = quoted_texts(line);
    if (line.starts_with(kSetState)) result.has_setstate = true;
  }
  return result;
}

class ScriptReader {
 public:
  explicit ScriptReader(const ReadRecord& read) : read_(read) {}

  TensorReferences tensors(ValueRef root) {
    const auto* object = root->as<Opaque>();
    if (object == nullptr || !class_of(*object).is_module) {
      throw PickleError("it is a TorchScript archive that holds no module");
    }
    visit(*object, "", 0);
    parameters_.insert(parameters_.end(), buffers_.begin(), buffers_.end());
    return std::move(parameters_);
  }

 private:
  // "__torch__.net.Block" is the class Block of "code/__torch__/net.py".
  const ScriptClass& class_of(const Opaque& object) {
    const auto [found, is_new] = classes_.try_emplace(object.name);
    const size_t dot = object.name.rfind('.');
    if (!is_new || dot == std::string::npos) return found->second;
    std::string file = object.name.substr(0, dot);
    std::replace(file.begin(), file.end(), '.', '/');
    const auto [source, is_unread] = sources_.try_emplace(file);
    if (is_unread) source->second = read_(fmt::format("code/{}.py", file)).value_or("");
    found->second = parse_class(source->second, std::string_view(object.name).substr(dot + 1));
    return found->second;
  }

  void visit(const Opaque& module, const std::string& prefix, int depth) {
    const ScriptClass& source = class_of(module);
    const Dict* attributes = module.state == nullptr ? nullptr : module.state->as<Dict>();
    if (source.has_setstate || attributes == nullptr) {
      throw PickleError(fmt::format(
          "its TorchScript module {} is restored by its own code (__setstate__), and no code of "
          "a weights file is executed. Save the weights alone: torch.save(model.state_dict(), "
          "\"weights.pt\"). A program that trusts the file can load it as a lockstep::ScriptModel",
          shown(prefix)));
    }
    if (depth > kMaxModuleDepth || ++modules_ > kMaxScriptModules) {
      throw PickleError("its TorchScript modules are nested too deep or refer to each other in a circle");
    }
    std::unordered_map<std::string_view, ValueRef> values;  // a later equal key replaces an earlier one
    for (const auto& [key, value] : attributes->items) {
      if (const auto* name = key->as<std::string>()) values[*name] = value;
    }
    for (const auto& [list, result] :
         {std::pair(&source.parameters, &parameters_), std::pair(&source.buffers, &buffers_)}) {
      for (const std::string& name : *list) {
        if (const auto found = values.find(name); found != values.end()) {
          add(*result, prefix + name, found->second);
        }
      }
    }
    for (const auto& [key, value] : attributes->items) {
      const auto* name = key->as<std::string>();
      const auto* child = value->as<Opaque>();
      if (name == nullptr || child == nullptr || values[*name] != value) continue;
      if (!child->name.empty() && class_of(*child).is_module) {
        const std::string path = prefix + *name + ".";
        charge(path);
        visit(*child, path, depth + 1);
      }
    }
  }

  void add(TensorReferences& result, std::string name, ValueRef value) {
    charge(name);
    const auto* object = value->as<Opaque>();
    if (object != nullptr && object->name.starts_with("torch._utils._rebuild")) {
      throw PickleError(fmt::format("tensor '{}' of its TorchScript module is sparse or quantised",
                                    name.substr(0, kMaxQuotedPathBytes)));
    }
    const auto* tensor = value->as<TensorReference>();
    if (tensor != nullptr) result.emplace_back(std::move(name), tensor);  // None: a module without bias
  }

  // Long names of nested modules could need much more memory than the file.
  void charge(const std::string& name) {
    name_bytes_ += name.size();
    if (name_bytes_ > kMaxScriptNameBytes) throw PickleError("the names of its tensors are too long");
  }

  static std::string shown(const std::string& prefix) {
    return prefix.empty()
               ? "itself"
               : fmt::format("'{}'", prefix.substr(0, std::min(prefix.size() - 1, kMaxQuotedPathBytes)));
  }

  const ReadRecord& read_;
  std::unordered_map<std::string, ScriptClass> classes_;
  std::unordered_map<std::string, std::string> sources_;
  TensorReferences parameters_, buffers_;
  size_t modules_ = 0;
  size_t name_bytes_ = 0;
};

}  // namespace

TensorReferences find_state_dict(ValueRef root) {
  const ValueRef place = locate(root);
  if (place == nullptr) {
    // An empty dict is the state dict of a model without parameters.
    if (const Dict* dict = root->as<Dict>(); dict != nullptr && dict->items.empty()) return {};
    throw PickleError(fmt::format(
        "it holds no state dict, but {}. Save one: torch.save(model.state_dict(), \"weights.pt\")",
        content_text(root)));
  }
  return tensors_of(*place->as<Dict>(), "state dict key");
}

TensorReferences find_script_tensors(ValueRef root, const ReadRecord& read) {
  return ScriptReader(read).tensors(root);
}

}  // namespace lockstep::checkpoint
