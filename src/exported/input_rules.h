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
  explicit InputRules(const Program& program);

  // ConfigError names the input and its dimension. `inputs` are those that users pass.
  void check(const std::vector<c10::IValue>& inputs) const;

 private:
  struct Dimension {
    std::optional<int64_t> fixed;
    std::optional<SizeExpression> expression;  // nullopt: one that is not known here
    std::optional<std::string> symbol;
    std::string text;
  };
  struct Rule {
    std::string name;
    bool is_tensor = true;
    at::ScalarType dtype = at::kFloat;
    std::vector<Dimension> dimensions;
  };

  void check_range(const std::string& name, size_t dimension, const std::string& symbol, int64_t size) const;

  std::vector<Rule> rules_;
  std::map<std::string, Range> ranges_;
};

}  // namespace lockstep::exported
