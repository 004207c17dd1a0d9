#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::exported {

// Sizes by the names of their symbols.
using Symbols = std::map<std::string, int64_t, std::less<>>;

// An expression of sizes as torch.export writes it: SymPy's
// "Mul(Integer(2), Symbol('s77', positive=True, integer=True))".
class SizeExpression {
 public:
  // nullopt: it has a function that is not known here, or it is no expression.
  static std::optional<SizeExpression> parse(std::string_view text);

  // The name of the symbol if the expression is one symbol alone.
  std::optional<std::string> symbol() const;
  // nullopt: a symbol has no value, or the result is no 64-bit integer.
  std::optional<int64_t> value(const Symbols& symbols) const;

 private:
  struct Tree;
  friend class SizeExpressionParser;
  explicit SizeExpression(std::shared_ptr<const Tree> tree) : tree_(std::move(tree)) {}
  static std::optional<int64_t> evaluate(const Tree& tree, const Symbols& symbols);

  std::shared_ptr<const Tree> tree_;
};

}  // namespace lockstep::exported
