#include "exported/program.h"

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/complex.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

namespace lockstep::exported {
namespace {

constexpr int64_t kSchemaMajor = 8;
// graph_module.graph.nodes[].inputs[].arg.as_graph.graph is nine levels: enough for regions inside regions.
constexpr size_t kMaxDepth = 96;
constexpr size_t kMaxDimensions = 64;
constexpr size_t kMaxQuotedBytes = 120;

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw ProgramError(fmt::format(text, std::forward<Args>(args)...));
}

const Json& member(const Json& object, const char* name) {
  const Json* const found = object.find(name);
  if (found == nullptr) refuse("'{}' is missing in its program", name);
  return *found;
}

// nullptr: missing, or null.
const Json* optional_member(const Json& object, const char* name) {
  const Json* const found = object.find(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

const Json& array(const Json& value, std::string_view what) {
  if (!value.is_array()) refuse("'{}' of its program is not an array", what);
  return value;
}

const Json& array_member(const Json& object, const char* name) { return array(member(object, name), name); }

std::string text_member(const Json& object, const char* name) {
  const Json& value = member(object, name);
  if (!value.is_string()) refuse("'{}' of its program is not a string", name);
  return value.get<std::string>();
}

int64_t integer(const Json& value, std::string_view what) {
  if (!value.is_integer_of<int64_t>()) refuse("{} of its program is not an integer of 64 bits", what);
  return value.get<int64_t>();
}

double number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  // torch.export writes these as strings.
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  refuse("a number of its program has the type {}", value.type_name());
}

bool boolean(const Json& value) {
  if (!value.is_boolean()) refuse("a boolean of its program has the type {}", value.type_name());
  return value.get<bool>();
}

int64_t memory_format_numbered(const Json& value) {
  switch (integer(value, "a memory format")) {
    case 1: return static_cast<int64_t>(at::MemoryFormat::Contiguous);
    case 2: return static_cast<int64_t>(at::MemoryFormat::ChannelsLast);
    case 3: return static_cast<int64_t>(at::MemoryFormat::ChannelsLast3d);
    case 4: return static_cast<int64_t>(at::MemoryFormat::Preserve);
    default: refuse("its program has an unknown memory format");
  }
}

Extent extent_of(const Json& value) {
  const auto& [kind, content] = only_member(value);
  if (kind == "as_int") return {.fixed = size_of(value), .expression = {}};
  if (kind != "as_expr") refuse("a size of its program has the unknown kind '{}'", printable(kind));
  Extent extent{.fixed = std::nullopt, .expression = text_member(content, "expr_str")};
  if (const Json* const hint = optional_member(content, "hint")) {
    if (const Json* const size = hint->is_object() ? optional_member(*hint, "as_int") : nullptr) {
      if (size->is_integer_of<int64_t>()) extent.exported = size->get<int64_t>();
    }
  }
  return extent;
}

TensorMeta tensor_meta(const Json& value) {
  TensorMeta meta;
  meta.dtype = dtype_numbered(member(value, "dtype"));
  const Json& sizes = array_member(value, "sizes");
  if (sizes.size() > kMaxDimensions) refuse("a tensor of its program has {} dimensions", sizes.size());
  for (const Json& size : sizes) meta.sizes.push_back(extent_of(size));
  meta.requires_grad = boolean(member(value, "requires_grad"));
  return meta;
}

// "model.py:12", of the innermost frame that is not LibTorch's.
std::string python_line(const std::string& stack_trace) {
  std::string found;
  constexpr std::string_view kFile = "File \"";
  for (size_t at = stack_trace.find(kFile); at != std::string::npos; at = stack_trace.find(kFile, at)) {
    at += kFile.size();
    const size_t end = stack_trace.find("\", line ", at);
    if (end == std::string::npos) break;
    const std::string file = stack_trace.substr(at, end - at);
    const size_t digits = end + std::string_view("\", line ").size();
    const size_t last = stack_trace.find_first_not_of("0123456789", digits);
    const bool is_torch = file.find("/torch/") != std::string::npos || file.starts_with("torch/");
    if (file.starts_with('<') || (is_torch && !found.empty())) continue;
    found = printable(fmt::format("{}:{}", file, stack_trace.substr(digits, last - digits)));
  }
  return found;
}

// nn_module_stack is "KEY,PATH,CLASS;...", from the model to the innermost module. Keys and paths of
// modules in containers have commas in no version.
void read_module(const std::string& stack, Node& node) {
  const size_t begin = stack.rfind(';') == std::string::npos ? 0 : stack.rfind(';') + 1;
  const size_t first = stack.find(',', begin);
  if (first == std::string::npos) return;
  const size_t second = stack.find(',', first + 1);
  if (second == std::string::npos) return;
  node.module = printable(stack.substr(first + 1, second - first - 1));
  node.module_class = printable(stack.substr(second + 1));
}

class Parser {
 public:
  explicit Parser(Program& program) : program_(program) {}

  void parse(const Json& root);

 private:
  // The names of a graph and of what defines them. Regions have scopes of their own.
  using Scope = std::unordered_map<std::string, ValueId>;

  ValueId define(Scope& scope, const std::string& name);
  ValueId define_tensor(Scope& scope, const std::string& name);
  static ValueId use(const Scope& scope, const std::string& name);
  Argument argument(const Scope& scope, const Json& value);
  std::vector<ValueId> results(Scope& scope, const Json& value);
  std::vector<uint32_t> calls(const std::string& stack);
  Node node(Scope& scope, const Json& value);
  void graph(const Json& value, Scope& scope, Graph& into);
  void inputs(const Json& specs, const Json& graph, const Scope& scope);
  void user_input(const Json& given, const Json& graph, const Scope& scope, Input& input);
  void outputs(const Json& specs, const Scope& scope);
  void name_user_values(const Json& calls);

  Program& program_;
  std::unordered_map<std::string, uint32_t> call_numbers_;  // by their text in nn_module_stack
  const Json* metas_ = nullptr;                             // of the tensors of the graph that is read
};

ValueId Parser::define(Scope& scope, const std::string& name) {
  const auto id = static_cast<ValueId>(program_.values);
  if (!scope.emplace(name, id).second) refuse("its program defines the value '{}' twice", printable(name));
  ++program_.values;
  program_.differentiable.push_back(true);
  return id;
}

ValueId Parser::define_tensor(Scope& scope, const std::string& name) {
  constexpr std::array kIntegers = {1, 2, 3, 4, 5, 12, 28, 34, 35};
  const ValueId id = define(scope, name);
  const Json* const meta = metas_ == nullptr ? nullptr : metas_->find(name);
  const Json* const dtype = meta == nullptr ? nullptr : meta->find("dtype");
  program_.differentiable[id] = dtype == nullptr || std::none_of(kIntegers.begin(), kIntegers.end(),
                                                                 [&](int known) { return *dtype == known; });
  return id;
}

ValueId Parser::use(const Scope& scope, const std::string& name) {
  const auto found = scope.find(name);
  if (found == scope.end()) refuse("its program uses the value '{}' before it defines it", printable(name));
  return found->second;
}

Argument constant(c10::IValue value) {
  Argument made;
  made.constant = std::move(value);
  return made;
}

Argument value_argument(ValueId value) {
  Argument made;
  made.kind = Argument::Kind::kValue;
  made.value = value;
  return made;
}

template <typename Make>
Argument list_of(const Json& values, const Make& make) {
  Argument made;
  made.kind = Argument::Kind::kList;
  for (const Json& value : array(values, "a list")) made.elements.push_back(make(value));
  return made;
}

Argument Parser::argument(const Scope& scope, const Json& value) {
  const auto& [kind, content] = only_member(value);
  const auto named = [&](const Json& one) { return value_argument(use(scope, text_member(one, "name"))); };
  const auto recurse = [&](const Json& one) { return argument(scope, one); };
  if (kind == "as_none") return constant({});
  if (kind == "as_tensor") return named(content);
  if (kind == "as_name") {
    if (!content.is_string()) refuse("the name of a value of its program is not a string");
    return value_argument(use(scope, content.get<std::string>()));
  }
  if (kind == "as_int") return constant(integer(content, "an argument"));
  if (kind == "as_float") return constant(number(content));
  if (kind == "as_bool") return constant(boolean(content));
  if (kind == "as_string") {
    if (!content.is_string()) refuse("a string of its program is not one");
    return constant(content.get<std::string>());
  }
  if (kind == "as_complex") {
    return constant(c10::complex<double>(number(member(content, "real")), number(member(content, "imag"))));
  }
  if (kind == "as_scalar_type") return constant(static_cast<int64_t>(dtype_numbered(content)));
  if (kind == "as_memory_format") return constant(memory_format_numbered(content));
  if (kind == "as_layout") {
    if (integer(content, "a layout") != 7) refuse("its program has tensors that are not strided");
    return constant(static_cast<int64_t>(at::kStrided));
  }
  if (kind == "as_device") {
    Argument made;
    made.kind = Argument::Kind::kDevice;
    return made;
  }
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool" ||
      kind == "as_optional_tensor") {
    return recurse(content);
  }
  if (kind == "as_tensors") return list_of(content, named);
  if (kind == "as_optional_tensors" || kind == "as_sym_ints" || kind == "as_sym_floats" ||
      kind == "as_sym_bools") {
    return list_of(content, recurse);
  }
  if (kind == "as_ints") {
    return list_of(content, [](const Json& one) { return constant(integer(one, "an argument")); });
  }
  if (kind == "as_floats") return list_of(content, [](const Json& one) { return constant(number(one)); });
  if (kind == "as_bools") return list_of(content, [](const Json& one) { return constant(boolean(one)); });
  if (kind == "as_strings") {
    return list_of(content, [](const Json& one) {
      if (!one.is_string()) refuse("a string of its program is not one");
      return constant(one.get<std::string>());
    });
  }
  if (kind == "as_graph") {
    Argument made;
    made.kind = Argument::Kind::kGraph;
    made.graph = std::make_shared<Graph>();
    Scope inner;
    graph(member(content, "graph"), inner, *made.graph);
    return made;
  }
  refuse("its program has arguments of the kind '{}', which are not supported", printable(kind));
}

std::vector<ValueId> Parser::results(Scope& scope, const Json& value) {
  const auto& [kind, content] = only_member(value);
  const auto named = [&](const Json& one) { return define_tensor(scope, text_member(one, "name")); };
  if (kind == "as_none") return {};
  if (kind == "as_tensor") return {named(content)};
  if (kind == "as_optional_tensor") return results(scope, content);
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
    return {define(scope, text_member(content, "as_name"))};
  }
  if (kind == "as_tensors") {
    std::vector<ValueId> values;
    for (const Json& one : array(content, kind)) values.push_back(named(one));
    return values;
  }
  refuse("its program has results of the kind '{}', which are not supported", printable(kind));
}

// The calls of nn_module_stack. The key of a second call of a module ends with "@1".
std::vector<uint32_t> Parser::calls(const std::string& stack) {
  constexpr std::string_view kUnknown = "_empty_nn_module_stack_from_metadata_hook";
  std::vector<uint32_t> result;
  for (size_t begin = 0; begin < stack.size();) {
    const size_t end = std::min(stack.find(';', begin), stack.size());
    std::string entry = stack.substr(begin, end - begin);
    begin = end + 1;
    const size_t first = entry.find(',');
    const size_t second = first == std::string::npos ? first : entry.find(',', first + 1);
    if (second == std::string::npos || entry.starts_with(kUnknown)) continue;
    ModuleCall call{entry.substr(first + 1, second - first - 1), printable(entry.substr(second + 1))};
    const auto [found, is_new] =
        call_numbers_.try_emplace(std::move(entry), static_cast<uint32_t>(program_.calls.size()));
    if (is_new) program_.calls.push_back(std::move(call));
    result.push_back(found->second);
  }
  return result;
}

Node Parser::node(Scope& scope, const Json& value) {
  Node node;
  node.target = text_member(value, "target");
  if (const Json* const metadata = optional_member(value, "metadata")) {
    const auto text = [&](const char* name) {
      const Json* const found = optional_member(*metadata, name);
      return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
    };
    node.python_line = python_line(text("stack_trace"));
    read_module(text("nn_module_stack"), node);
    node.calls = calls(text("nn_module_stack"));
  }
  for (const Json& input : array_member(value, "inputs")) {
    Argument made = argument(scope, member(input, "arg"));
    made.name = text_member(input, "name");
    node.inputs.push_back(std::move(made));
  }
  for (const Json& output : array_member(value, "outputs")) node.outputs.push_back(results(scope, output));
  return node;
}

void Parser::graph(const Json& value, Scope& scope, Graph& into) {
  const Json* const outer = std::exchange(metas_, optional_member(value, "tensor_values"));
  for (const Json& input : array_member(value, "inputs")) {
    const auto& [kind, content] = only_member(input);
    if (kind == "as_tensor") {
      into.inputs.push_back(define(scope, text_member(content, "name")));
    } else if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
      into.inputs.push_back(define(scope, text_member(content, "as_name")));
    } else if (kind != "as_none" && kind != "as_int" && kind != "as_float" && kind != "as_bool" &&
               kind != "as_string") {
      refuse("its program has inputs of the kind '{}', which are not supported", printable(kind));
    }
  }
  const Json& nodes = array_member(value, "nodes");
  into.nodes.reserve(nodes.size());
  for (const Json& each : nodes) into.nodes.push_back(node(scope, each));
  for (const Json& output : array_member(value, "outputs")) into.outputs.push_back(argument(scope, output));
  metas_ = outer;
}

// An input that users pass, or one with the only value that the program was exported for.
void Parser::user_input(const Json& given, const Json& graph, const Scope& scope, Input& input) {
  const auto& [form, value] = only_member(given);
  if (form == "as_tensor") {
    input.name = text_member(value, "name");
    input.value = use(scope, input.name);
    input.tensor = tensor_meta(member(member(graph, "tensor_values"), input.name.c_str()));
    return;
  }
  const bool is_symbolic = form == "as_sym_int" || form == "as_sym_float" || form == "as_sym_bool";
  if (is_symbolic && only_member(value).first == "as_name") {
    input.name = text_member(value, "as_name");
    input.value = use(scope, input.name);
    input.number.kind = form == "as_sym_int"     ? NumberMeta::Kind::kInteger
                        : form == "as_sym_float" ? NumberMeta::Kind::kReal
                                                 : NumberMeta::Kind::kBoolean;
    const Json* const known = form == "as_sym_int" ? optional_member(graph, "sym_int_values") : nullptr;
    const Json* const meta = known == nullptr ? nullptr : optional_member(*known, input.name.c_str());
    if (meta != nullptr && only_member(*meta).first == "as_expr") input.number.extent = extent_of(*meta);
    return;
  }
  const Argument only = argument(scope, given);
  if (only.kind != Argument::Kind::kConstant) {
    refuse("its program has inputs of the kind '{}', which are not supported", printable(form));
  }
  input.only_value = only.constant;
}

void Parser::inputs(const Json& specs, const Json& graph, const Scope& scope) {
  const Json& metas = member(graph, "tensor_values");
  const auto meta_of = [&](const std::string& name) { return tensor_meta(member(metas, name.c_str())); };
  std::unordered_set<std::string> names;
  for (const Json& spec : specs) {
    const auto& [kind, content] = only_member(spec);
    Input input;
    if (kind == "user_input") {
      user_input(member(content, "arg"), graph, scope, input);
    } else if (kind == "constant_input") {
      input.name = text_member(content, "name");
      input.only_value = argument(scope, member(content, "value")).constant;
    } else if (kind == "parameter" || kind == "buffer" || kind == "tensor_constant") {
      const std::string name = text_member(member(content, "arg"), "name");
      input.value = use(scope, name);
      input.tensor = meta_of(name);
      input.kind = kind == "parameter" ? Input::Kind::kParameter
                   : kind == "buffer"  ? Input::Kind::kBuffer
                                       : Input::Kind::kConstant;
      input.name = text_member(content, (kind + "_name").c_str());
      if (kind == "buffer") input.persistent = boolean(member(content, "persistent"));
      if (!names.insert(input.name).second) {
        refuse("its program has two inputs for '{}'", printable(input.name));
      }
    } else {
      refuse("its program has inputs of the kind '{}', which are not supported", printable(kind));
    }
    program_.inputs.push_back(std::move(input));
  }
}

void Parser::outputs(const Json& specs, const Scope& scope) {
  for (const Json& spec : specs) {
    const auto& [kind, content] = only_member(spec);
    Output output;
    if (kind == "user_output") {
      output.value = argument(scope, member(content, "arg"));
    } else if (kind == "loss_output") {
      output.value = value_argument(use(scope, text_member(member(content, "arg"), "name")));
    } else if (kind == "buffer_mutation" || kind == "parameter_mutation" || kind == "user_input_mutation") {
      output.kind =
          kind == "user_input_mutation" ? Output::Kind::kInputMutation : Output::Kind::kBufferMutation;
      output.value = value_argument(use(scope, text_member(member(content, "arg"), "name")));
      const char* const field = kind == "buffer_mutation"      ? "buffer_name"
                                : kind == "parameter_mutation" ? "parameter_name"
                                                               : "user_input_name";
      const std::string name = text_member(content, field);
      const auto changed =
          std::find_if(program_.inputs.begin(), program_.inputs.end(), [&](const Input& input) {
            return input.name == name &&
                   (input.kind == Input::Kind::kUser) == (output.kind == Output::Kind::kInputMutation);
          });
      if (changed == program_.inputs.end())
        refuse("its program changes the unknown input '{}'", printable(name));
      output.changed = changed->value;
    } else {
      refuse("its program has outputs of the kind '{}', which are not supported", printable(kind));
    }
    program_.outputs.push_back(std::move(output));
  }
}

// --- the structure of inputs and outputs: Python's pytree ---

constexpr size_t kMaxTreeDepth = 32;

// The names in the context of a node: the keys of a dict, the fields of a dataclass or of Hugging Face's
// ModelOutput. Empty: it has none; of a named tuple the file has only the class.
std::vector<std::string> child_names(const Json& spec, size_t children) {
  const Json& context = member(spec, "context");
  std::optional<Json> parsed;
  if (context.is_string()) parsed = Json::try_parse(context.text(), {.max_depth = kMaxTreeDepth});
  const Json* names = parsed ? &*parsed : &context;
  // A defaultdict: {"default_factory_name": ..., "dict_context": [keys]}.
  if (names->is_object() && names->find("dict_context") != nullptr) names = names->find("dict_context");
  // A dataclass: [[fields], [fields that are None]].
  if (names->is_array() && names->size() == 2 && names->at(0).is_array() && names->at(1).is_array()) {
    names = &names->at(0);
  }
  if (!names->is_array() || names->size() != children) return {};
  std::vector<std::string> result;
  for (const Json& name : *names) result.push_back(name.is_string() ? name.get<std::string>() : name.dump());
  return result;
}

// Appends the path of every leaf below `spec`.
void leaf_paths(const Json& spec, const std::string& path, size_t depth, std::vector<std::string>& leaves) {
  if (depth > kMaxTreeDepth) refuse("the structure of its inputs or outputs is nested too deep");
  const Json& type = member(spec, "type");
  if (type.is_null()) {
    leaves.push_back(path);
    return;
  }
  const Json& children = array_member(spec, "children_spec");
  std::vector<std::string> keys = child_names(spec, children.size());
  if (keys.empty()) {
    for (size_t i = 0; i < children.size(); ++i) keys.push_back(std::to_string(i));
  }
  for (size_t i = 0; i < children.size(); ++i) {
    leaf_paths(children.at(i), path.empty() ? keys[i] : path + "." + keys[i], depth + 1, leaves);
  }
}

// A spec is the text of [1, {type, context, children_spec}]. nullopt: of another version.
std::optional<Json> tree_spec(const Json& signature, const char* name) {
  const Json* const text = optional_member(signature, name);
  if (text == nullptr || !text->is_string()) return std::nullopt;
  std::optional<Json> parsed = Json::try_parse(text->text(), {.max_depth = 4 * kMaxTreeDepth});
  if (!parsed || !parsed->is_array() || parsed->size() != 2 || parsed->at(0) != Json(1)) return std::nullopt;
  return Json(parsed->at(1));
}

void Parser::name_user_values(const Json& calls) {
  const Json* signature = nullptr;
  for (const Json& call : calls) {
    std::string path = text_member(call, "fqn");
    if (path.empty()) signature = optional_member(call, "signature");
    // A further call of the same module is "layer@1".
    if (path.find('@') == std::string::npos) program_.modules.push_back(std::move(path));
  }
  if (signature == nullptr) return;
  std::vector<Output*> outputs;
  for (Output& output : program_.outputs) {
    if (output.kind == Output::Kind::kUser) outputs.push_back(&output);
  }
  if (const auto spec = tree_spec(*signature, "out_spec")) {
    std::vector<std::string> leaves;
    leaf_paths(*spec, "", 0, leaves);
    if (leaves.size() != outputs.size()) {
      refuse("its program has {} outputs and their structure {}", outputs.size(), leaves.size());
    }
    for (size_t i = 0; i < leaves.size(); ++i) outputs[i]->name = leaves[i];
  }
  // The structure of the inputs is ((positional...), {keyword: ...}); forward_arg_names names all.
  const auto spec = tree_spec(*signature, "in_spec");
  if (!spec) return;
  const Json& parts = array_member(*spec, "children_spec");
  if (parts.size() != 2) return;
  std::vector<std::string> leaves;
  const Json& positional = array_member(parts.at(0), "children_spec");
  const Json* const names = optional_member(*signature, "forward_arg_names");
  for (size_t i = 0; i < positional.size(); ++i) {
    const bool named = names != nullptr && names->is_array() && i < names->size() && names->at(i).is_string();
    leaf_paths(positional.at(i), named ? names->at(i).get<std::string>() : std::to_string(i), 1, leaves);
  }
  leaf_paths(parts.at(1), "", 1, leaves);
  std::vector<Input*> inputs;
  for (Input& input : program_.inputs) {
    if (input.kind == Input::Kind::kUser) inputs.push_back(&input);
  }
  if (leaves.size() != inputs.size()) {
    refuse("its program has {} inputs and their structure {}", inputs.size(), leaves.size());
  }
  for (size_t i = 0; i < leaves.size(); ++i) inputs[i]->name = leaves[i];
}

void Parser::parse(const Json& root) {
  const Json& version = member(root, "schema_version");
  const int64_t major = integer(member(version, "major"), "the version");
  if (major != kSchemaMajor) {
    refuse(
        "its format has version {}.{}, and this version of Lockstep reads {}: export the model again with "
        "PyTorch 2.11 to 2.15",
        major, integer(member(version, "minor"), "the version"), kSchemaMajor);
  }
  if (const Json* const torch = optional_member(root, "torch_version")) {
    if (torch->is_string()) program_.torch_version = printable(torch->text());
  }
  const Json& module = member(root, "graph_module");
  const Json& graph_json = member(module, "graph");
  Scope scope;
  graph(graph_json, scope, program_.graph);
  const Json& signature = member(module, "signature");
  // The names of inputs that are mutated are those of the graph: they get their paths after the outputs
  // were read.
  inputs(array_member(signature, "input_specs"), graph_json, scope);
  outputs(array_member(signature, "output_specs"), scope);
  name_user_values(array_member(module, "module_call_graph"));
  std::unordered_set<ValueId> provided;
  for (const Input& input : program_.inputs) {
    if (!input.only_value) provided.insert(input.value);
  }
  for (const ValueId input : program_.graph.inputs) {
    if (provided.count(input) == 0) refuse("an input of its program has no description");
  }
  for (const auto& [expression, range] : member(root, "range_constraints").items()) {
    const auto bound = [&range = range](const char* name) -> std::optional<int64_t> {
      const Json* const value = optional_member(range, name);
      if (value == nullptr) return std::nullopt;
      return integer(*value, "a bound");
    };
    program_.ranges[expression] = {.least = bound("min_val"), .most = bound("max_val")};
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result(text.substr(0, kMaxQuotedBytes));
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return result;
}

std::pair<const std::string&, const Json&> only_member(const Json& value) {
  if (!value.is_object() || value.size() != 1) {
    refuse("a value of its program is not an object with one member");
  }
  const auto& [name, content] = *value.items().begin();
  return {name, content};
}

int64_t size_of(const Json& value) {
  const auto& [kind, content] = only_member(value);
  if (kind != "as_int" || !content.is_integer_of<int64_t>() || content.get<int64_t>() < 0) {
    refuse("a tensor of it has no fixed size");
  }
  return content.get<int64_t>();
}

at::ScalarType dtype_numbered(const Json& value) {
  struct Numbered {
    int64_t number;
    at::ScalarType dtype;
  };
  constexpr std::array kDtypes = {Numbered{1, at::kByte},
                                  Numbered{2, at::kChar},
                                  Numbered{3, at::kShort},
                                  Numbered{4, at::kInt},
                                  Numbered{5, at::kLong},
                                  Numbered{6, at::kHalf},
                                  Numbered{7, at::kFloat},
                                  Numbered{8, at::kDouble},
                                  Numbered{9, at::kComplexHalf},
                                  Numbered{10, at::kComplexFloat},
                                  Numbered{11, at::kComplexDouble},
                                  Numbered{12, at::kBool},
                                  Numbered{13, at::kBFloat16},
                                  Numbered{28, at::kUInt16},
                                  Numbered{29, at::kFloat8_e4m3fn},
                                  Numbered{30, at::kFloat8_e5m2},
                                  Numbered{31, at::kFloat8_e4m3fnuz},
                                  Numbered{32, at::kFloat8_e5m2fnuz},
                                  Numbered{33, at::kFloat8_e8m0fnu},
                                  Numbered{34, at::kUInt32},
                                  Numbered{35, at::kUInt64}};
  const int64_t number = integer(value, "a dtype");
  for (const Numbered& known : kDtypes) {
    if (known.number == number) return known.dtype;
  }
  refuse("it has tensors of the unknown dtype {}", number);
}

Program parse_program(std::string_view json) {
  Program program;
  try {
    const Json root = Json::parse(json, {.max_depth = kMaxDepth, .unique_names = true});
    if (!root.is_object()) refuse("its program is not a JSON object");
    Parser(program).parse(root);
  } catch (const JsonError& error) {
    refuse("its program is no JSON: {}", printable(error.what()));
  }
  return program;
}

}  // namespace lockstep::exported
