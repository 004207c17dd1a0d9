#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <lockstep/json.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::exported {

// The program of a .pt2 file (torch.export.save) as data: read and checked, with names replaced by
// numbers. Nothing is looked up in LibTorch and nothing is executed.

// The reason why a file is refused, without the name of the file.
class ProgramError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A text of the file for a message: short, without control characters.
std::string printable(std::string_view text);

// The number of a value of the program: a tensor or a number that an input or a node defines. Each is
// defined once, before it is used.
using ValueId = uint32_t;

struct Graph;

// An argument of a node, or an output of the program.
struct Argument {
  enum class Kind {
    kConstant,  // `constant`
    kValue,     // `value`
    kList,      // `elements`: constants and values
    kDevice,    // the device that the program was exported on: the model's device replaces it
    kGraph,     // a region with a program of its own
  };
  std::string name;  // in the operator's schema; empty: by position
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  ValueId value = 0;
  std::vector<Argument> elements;
  std::shared_ptr<Graph> graph;
};

struct Node {
  std::string target;  // "torch.ops.aten.linear.default"
  std::vector<Argument> inputs;
  // One entry for each result of the operator: the values it defines (several for a list of tensors),
  // none for a result without name.
  std::vector<std::vector<ValueId>> outputs;
  std::string python_line;   // "model.py:12"; empty: unknown
  std::string module;        // the innermost module of Python: "layer1.0.conv1"; empty: the model
  std::string module_class;  // "torch.nn.modules.conv.Conv2d"; empty: unknown
  // The calls of modules in which Python recorded the node, from the model to the innermost module: numbers
  // in Program::calls. Empty: unknown.
  std::vector<uint32_t> calls;
};

// A call of a module of Python. A module that is called twice has two.
struct ModuleCall {
  std::string path;          // "layer1.0.conv1"; empty: the model
  std::string module_class;  // "torch.nn.modules.conv.Conv2d"
};

struct Graph {
  std::vector<ValueId> inputs;
  std::vector<Node> nodes;
  std::vector<Argument> outputs;
};

// The extent of a dimension: a number, or an expression of the sizes of the inputs.
struct Extent {
  std::optional<int64_t> fixed;
  std::string expression;                // SymPy's text: "Symbol('s77', positive=True, integer=True)"
  std::optional<int64_t> exported = {};  // the size in the export, of an expression
};

struct TensorMeta {
  at::ScalarType dtype = at::kFloat;
  std::vector<Extent> sizes;
  bool requires_grad = false;
};

struct NumberMeta {
  enum class Kind { kInteger, kReal, kBoolean };
  Kind kind = Kind::kInteger;
  std::optional<Extent> extent;  // kInteger; nullopt: unknown
};

struct Input {
  enum class Kind { kParameter, kBuffer, kConstant, kUser };
  Kind kind = Kind::kUser;
  ValueId value = 0;
  // Python's name of a parameter, buffer or constant. Of a user's input its path: "x", "scale.0".
  std::string name;
  bool persistent = true;                 // buffers: part of the state dict
  std::optional<TensorMeta> tensor;       // nullopt: a number
  NumberMeta number;                      // without `tensor`
  std::optional<c10::IValue> only_value;  // the program was exported for this value; users do not pass it
};

struct Output {
  enum class Kind { kUser, kBufferMutation, kInputMutation };
  Kind kind = Kind::kUser;
  Argument value;
  std::string name;     // kUser: its path: "" for a single one, "0", "loss", "pair.1"
  ValueId changed = 0;  // the mutated input
};

struct Range {
  std::optional<int64_t> least;
  std::optional<int64_t> most;
};

struct Program {
  Graph graph;
  size_t values = 0;  // value numbers are smaller
  // By value: whether it may have a gradient. Tensors of integers have none.
  std::vector<bool> differentiable;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<std::string> modules;     // Python's names of all modules, in the order of named_modules()
  std::vector<ModuleCall> calls;        // in the order in which they begin
  std::map<std::string, Range> ranges;  // of expressions, by their text: "s77", "2*s77"
  std::string torch_version;
};

// Reads models/model.json. ProgramError: the text is not the program of a supported version, or it
// contradicts itself.
Program parse_program(std::string_view json);

// "as_int", and its value, of {"as_int": 3}. ProgramError: not an object with one member.
std::pair<const std::string&, const Json&> only_member(const Json& value);
// {"as_int": 3} as 3. ProgramError: not a size of 0 or more.
int64_t size_of(const Json& value);
// A number of the file's enumeration. ProgramError: LibTorch has no such dtype.
at::ScalarType dtype_numbered(const Json& value);

}  // namespace lockstep::exported
