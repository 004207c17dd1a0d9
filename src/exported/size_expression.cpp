#include "exported/size_expression.h"

#include <array>
#include <utility>

#include "base/number.h"

namespace lockstep::exported {

// A number, a symbol, or a function of further trees.
struct SizeExpression::Tree {
  enum class Kind { kNumber, kSymbol, kAdd, kMul, kFloorDiv, kMod, kMax, kMin };
  Kind kind = Kind::kNumber;
  int64_t number = 0;
  std::string symbol;
  std::vector<Tree> parts;
};

class SizeExpressionParser {
 public:
  explicit SizeExpressionParser(std::string_view text) : text_(text) {}

  std::optional<SizeExpression> parse() {
    auto tree = std::make_shared<Tree>();
    if (!expression(*tree, 0) || at_ != text_.size()) return std::nullopt;
    return SizeExpression(std::move(tree));
  }

 private:
  using Tree = SizeExpression::Tree;
  static constexpr size_t kMaxDepth = 64;

  bool take(char c) {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::string_view word() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    const size_t begin = at_;
    const auto belongs = [](char c) {
      return c == '_' || c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
             (c >= 'A' && c <= 'Z');
    };
    while (at_ < text_.size() && belongs(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // "'s77', positive=True, integer=True)"
  bool symbol(Tree& into) {
    if (!take('\'')) return false;
    into.kind = Tree::Kind::kSymbol;
    into.symbol = word();
    const size_t end = text_.find(')', at_);
    if (into.symbol.empty() || !take('\'') || end == std::string_view::npos) return false;
    at_ = end + 1;
    return true;
  }

  bool expression(Tree& into, size_t depth) {
    if (depth > kMaxDepth) return false;
    const std::string_view name = word();
    if (!take('(')) return false;
    if (name == "Symbol") return symbol(into);
    if (name == "Integer") {
      const auto number = base::parse_integer(word());
      if (!number) return false;
      into.number = *number;
      return take(')');
    }
    constexpr std::array<std::pair<std::string_view, Tree::Kind>, 6> kFunctions = {{
        {"Add", Tree::Kind::kAdd},
        {"Mul", Tree::Kind::kMul},
        {"FloorDiv", Tree::Kind::kFloorDiv},
        {"Mod", Tree::Kind::kMod},
        {"Max", Tree::Kind::kMax},
        {"Min", Tree::Kind::kMin},
    }};
    bool known = false;
    for (const auto& [function, kind] : kFunctions) {
      if (name != function) continue;
      into.kind = kind;
      known = true;
    }
    if (!known) return false;
    do {
      if (!expression(into.parts.emplace_back(), depth + 1)) return false;
    } while (take(','));
    const bool is_binary = into.kind == Tree::Kind::kFloorDiv || into.kind == Tree::Kind::kMod;
    return take(')') && (!is_binary || into.parts.size() == 2);
  }

  std::string_view text_;
  size_t at_ = 0;
};

namespace {

std::optional<int64_t> floor_divide(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return b == 0 || a == INT64_MIN ? std::nullopt : std::optional(-a);
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

}  // namespace

std::optional<SizeExpression> SizeExpression::parse(std::string_view text) {
  return SizeExpressionParser(text).parse();
}

std::optional<std::string> SizeExpression::symbol() const {
  return tree_->kind == Tree::Kind::kSymbol ? std::optional(tree_->symbol) : std::nullopt;
}

std::optional<int64_t> SizeExpression::evaluate(const Tree& tree, const Symbols& symbols) {
  if (tree.kind == Tree::Kind::kNumber) return tree.number;
  if (tree.kind == Tree::Kind::kSymbol) {
    const auto found = symbols.find(tree.symbol);
    return found == symbols.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<int64_t> result;
  for (const Tree& part : tree.parts) {
    const auto next = evaluate(part, symbols);
    if (!next) return std::nullopt;
    if (!result) {
      result = next;
      continue;
    }
    int64_t sum = 0;
    switch (tree.kind) {
      case Tree::Kind::kAdd:
        if (__builtin_add_overflow(*result, *next, &sum)) return std::nullopt;
        result = sum;
        break;
      case Tree::Kind::kMul:
        if (__builtin_mul_overflow(*result, *next, &sum)) return std::nullopt;
        result = sum;
        break;
      case Tree::Kind::kFloorDiv: result = floor_divide(*result, *next); break;
      case Tree::Kind::kMod: {
        const auto quotient = floor_divide(*result, *next);
        if (!quotient) return std::nullopt;
        result = *result - *quotient * *next;
        break;
      }
      case Tree::Kind::kMax: result = std::max(*result, *next); break;
      case Tree::Kind::kMin: result = std::min(*result, *next); break;
      case Tree::Kind::kNumber:
      case Tree::Kind::kSymbol: break;
    }
    if (!result) return std::nullopt;
  }
  return result;
}

std::optional<int64_t> SizeExpression::value(const Symbols& symbols) const {
  return evaluate(*tree_, symbols);
}

}  // namespace lockstep::exported
