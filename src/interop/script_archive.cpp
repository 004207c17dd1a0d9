#include "interop/script_archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "interop/pickle.h"

namespace lockstep::interop {
namespace {

// Modules in modules; a network of ours has five. Deeper ones only cost stack.
constexpr int kMaxModuleDepth = 200;
// A module under two names is visited twice, so few bytes can describe very many modules.
constexpr size_t kMaxScriptModules = size_t{1} << 20;
constexpr size_t kMaxScriptNameBytes = size_t{64} << 20;
constexpr size_t kMaxQuotedPathBytes = 200;

// What the source of a class says about its attributes.
struct ScriptClass {
  bool is_module = false;
  bool has_setstate = false;
  std::vector<std::string> parameters = {};
  std::vector<std::string> buffers = {};
};

// The texts of a line such as `  __parameters__ = ["weight", "bias", ]`.
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

// The class in the source that torch.jit.save wrote: an unindented line begins a class.
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
          "its TorchScript module {} is restored by code of its own (__setstate__), and no code of "
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
    if (tensor != nullptr) result.emplace_back(std::move(name), tensor);  // None: a bias that is not there
  }

  // Long names of modules in modules would take much more memory than the file.
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

TensorReferences find_script_tensors(ValueRef root, const ReadRecord& read) {
  return ScriptReader(read).tensors(root);
}

}  // namespace lockstep::interop
