#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::exported {

// Numbers for the names of symbols, in the order in which they are met: "s77" is 0.
class SizeSymbols {
 public:
  size_t number_of(std::string_view name);
  const std::string& name(size_t number) const { return names_[number]; }
  size_t count() const { return names_.size(); }

 private:
  std::vector<std::string> names_;
  std::map<std::string, size_t, std::less<>> numbers_;
};

// The sizes of symbols by their numbers; nullopt: not known.
using SymbolSizes = std::vector<std::optional<int64_t>>;

// An expression of sizes that torch.export writes. The numbers between are fractions without rounding.
class SizeExpression {
 public:
  // Reads SymPy's "Mul(Integer(2), Symbol('s77', positive=True, integer=True))". ProgramError: it has a
  // function that is not known here, it has more than a thousand terms, or it is no expression.
  static SizeExpression parse(std::string_view text, SizeSymbols& symbols);
  // Reads "2*s77 - 1", as torch.export names its ranges.
  static SizeExpression parse_infix(std::string_view text, SizeSymbols& symbols);

  // The symbols of the expression, each once, by number.
  const std::vector<size_t>& symbols() const { return symbols_; }
  // Whether the expression is one symbol alone.
  bool is_symbol() const;
  // nullopt: a symbol has no size, or the result is no 64-bit integer. Allocates no memory.
  std::optional<int64_t> value(const SymbolSizes& sizes) const;
  // Whether the expression is a sum of symbols times numbers, with this one among them: it can be solved.
  bool is_linear_in(size_t symbol) const;
  // The size of the symbol with which the expression has this value; the other symbols have sizes.
  // nullopt: no integer.
  std::optional<int64_t> solve(size_t symbol, int64_t value, const SymbolSizes& sizes) const;
  // Equal for two expressions that have the same sums, or the same functions of the same parts.
  const std::string& key() const { return key_; }
  bool same_as(const SizeExpression& other) const { return key_ == other.key_; }
  // "2*s77 - 1"
  std::string text(const SizeSymbols& symbols) const;

 private:
  struct Tree;
  struct Linear;
  friend class SizeExpressionParser;
  explicit SizeExpression(std::shared_ptr<const Tree> tree);

  std::shared_ptr<const Tree> tree_;
  std::shared_ptr<const Linear> linear_;  // nullptr: not a sum
  std::vector<size_t> symbols_;
  std::string key_;
};

}  // namespace lockstep::exported
