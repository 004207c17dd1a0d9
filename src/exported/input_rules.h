#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

#include "exported/program.h"
#include "exported/size_expression.h"

namespace lockstep::exported {

// What a program was exported for: dtypes, fixed sizes, and bounds of the others. The graph was traced
// for these inputs alone, so other inputs could give wrong results without an error.
class InputRules {
 public:
  // ProgramError: a size is an expression that is not supported.
  explicit InputRules(const Program& program);

  // ConfigError names the input and its dimension. `inputs` are those that users pass. Allocates no memory
  // unless it throws. One thread at a time.
  void check(const std::vector<c10::IValue>& inputs);

  // Whether the program was exported for one value of the input: torch.export makes constants of numbers,
  // booleans and texts of Python. Users need not pass it. ConfigError: `value` is another one.
  bool is_fixed(const std::string& name, const c10::IValue& value) const;

  // Inputs of zeros with the sizes of the export, of which the numbers are 1. `converted`: the dtype of a
  // model that was converted, which floating-point inputs then have. `batch`: as
  // ExportedModelImpl::example_inputs(). ConfigError: so is the program not called.
  std::vector<c10::IValue> example(std::optional<int64_t> batch,
                                   std::optional<at::ScalarType> converted) const;

  // The sizes of an input that users pass: "[1 to 64, 3]"; of a number its bounds.
  std::string sizes_text(size_t input) const;

 private:
  // An input with the only value that the program was exported for.
  struct Fixed {
    std::string name;
    c10::IValue value;
  };
  // A size of an input, or an input that is a number.
  struct Place {
    size_t input = 0;
    std::optional<size_t> dimension;  // nullopt: a number
  };
  struct Dimension {
    std::optional<int64_t> fixed;
    std::optional<SizeExpression> expression;  // nullopt: fixed, or any number
    std::optional<int64_t> exported;           // the size in the export, of an expression
  };
  struct Rule {
    std::string name;
    std::optional<at::ScalarType> dtype;  // nullopt: a number
    NumberMeta::Kind number = NumberMeta::Kind::kInteger;
    std::vector<Dimension> dimensions;  // of a number one
  };
  // An expression at its place: the symbol that it gives a size, or an equation.
  struct Equation {
    Place place;
    SizeExpression expression;
    std::optional<size_t> solves;
  };
  // The range of an expression, and where an input has this expression.
  struct Bound {
    SizeExpression expression;
    Range range;
    std::optional<Place> place;
    bool checks_least = true;
  };

  const Dimension& dimension_at(const Place& place) const;
  void order_equations();
  void add_bounds(const Program& program);
  std::string described(const Place& place, int64_t size) const;
  void check_kinds(const std::vector<c10::IValue>& inputs) const;
  void check_equation(const Equation& equation, int64_t size);
  void check_bound(const Bound& bound) const;

  SizeSymbols symbols_;
  std::vector<Rule> rules_;
  std::vector<Fixed> fixed_;
  std::vector<Equation> equations_;  // each uses symbols that those before it gave sizes
  std::vector<Bound> bounds_;        // those of places first: their errors say more
  SymbolSizes sizes_;                // of the inputs that are being checked
};

}  // namespace lockstep::exported
