#include "exported/size_expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/number.h"
#include "exported/program.h"

namespace lockstep::exported {
namespace {

// A number of 64-bit parts in lowest terms. Both signs have the same range, so a number can be negated.
struct Fraction {
  int64_t top = 0;
  int64_t bottom = 1;  // 1 or more
  bool operator==(const Fraction&) const = default;

  // nullopt: the parts have more than 64 bits, or the number does not exist.
  using Result = std::optional<Fraction>;

  static Result of(__int128 top, __int128 bottom) {
    if (bottom == 0) return std::nullopt;
    if (bottom < 0) {
      top = -top;
      bottom = -bottom;
    }
    __int128 divisor = top < 0 ? -top : top;
    __int128 rest = bottom;
    while (rest != 0) divisor = std::exchange(rest, divisor % rest);
    top /= divisor;
    bottom /= divisor;
    if (top > INT64_MAX || top < -INT64_MAX || bottom > INT64_MAX) return std::nullopt;
    return Fraction{static_cast<int64_t>(top), static_cast<int64_t>(bottom)};
  }

  static Result sum(Fraction a, Fraction b) {
    const __int128 first = static_cast<__int128>(a.top) * b.bottom;
    const __int128 second = static_cast<__int128>(b.top) * a.bottom;
    return of(first + second, static_cast<__int128>(a.bottom) * b.bottom);
  }
  static Result product(Fraction a, Fraction b) {
    return of(static_cast<__int128>(a.top) * b.top, static_cast<__int128>(a.bottom) * b.bottom);
  }
  static Result quotient(Fraction a, Fraction b) {
    return of(static_cast<__int128>(a.top) * b.bottom, static_cast<__int128>(a.bottom) * b.top);
  }
  static Result floor_quotient(Fraction a, Fraction b) {
    const Result exact = quotient(a, b);
    return exact ? Result(exact->floor()) : std::nullopt;
  }
  // Of Python: with the sign of the divisor.
  static Result remainder(Fraction a, Fraction b) {
    const Result times = floor_quotient(a, b);
    const Result whole = times ? product(*times, b) : std::nullopt;
    return whole ? sum(a, whole->negative()) : std::nullopt;
  }
  static Result power(Fraction base, Fraction exponent) {
    if (exponent.bottom != 1 || exponent.top > 64 || exponent.top < -64) return std::nullopt;
    Result result = Fraction{1, 1};
    for (int64_t i = 0; result && i < std::abs(exponent.top); ++i) result = product(*result, base);
    return result && exponent.top < 0 ? quotient({1, 1}, *result) : result;
  }
  static bool is_less(Fraction a, Fraction b) {
    return static_cast<__int128>(a.top) * b.bottom < static_cast<__int128>(b.top) * a.bottom;
  }
  Fraction negative() const { return {-top, bottom}; }
  Fraction floor() const {
    const int64_t quotient = top / bottom;
    return {top % bottom != 0 && top < 0 ? quotient - 1 : quotient, 1};
  }
  Fraction ceiling() const { return negative().floor().negative(); }
};

enum class SizeFunctionKind {
  kNumber,
  kSymbol,
  kAdd,
  kMul,
  kPow,
  kDivide,
  kFloorDiv,
  kCeilDiv,
  kMod,
  kModularIndexing,
  kMax,
  kMin,
  kFloor,
  kCeil,
  kTrunc,
  kSame,
  kShiftLeft,
  kShiftRight
};

struct SizeFunction {
  std::string_view name;
  SizeFunctionKind kind;
  size_t least_parts;
  size_t most_parts;
};

constexpr size_t kAnyParts = SIZE_MAX;
// The first name of a kind is the one of text().
constexpr std::array kSizeFunctions = {
    SizeFunction{"Add", SizeFunctionKind::kAdd, 1, kAnyParts},
    SizeFunction{"Mul", SizeFunctionKind::kMul, 1, kAnyParts},
    SizeFunction{"Pow", SizeFunctionKind::kPow, 2, 2},
    SizeFunction{"PowByNatural", SizeFunctionKind::kPow, 2, 2},
    SizeFunction{"IntTrueDiv", SizeFunctionKind::kDivide, 2, 2},
    SizeFunction{"FloatTrueDiv", SizeFunctionKind::kDivide, 2, 2},
    SizeFunction{"FloorDiv", SizeFunctionKind::kFloorDiv, 2, 2},
    SizeFunction{"CleanDiv", SizeFunctionKind::kFloorDiv, 2, 2},
    SizeFunction{"CeilDiv", SizeFunctionKind::kCeilDiv, 2, 2},
    SizeFunction{"Mod", SizeFunctionKind::kMod, 2, 2},
    SizeFunction{"PythonMod", SizeFunctionKind::kMod, 2, 2},
    SizeFunction{"ModularIndexing", SizeFunctionKind::kModularIndexing, 3, 3},
    SizeFunction{"Max", SizeFunctionKind::kMax, 1, kAnyParts},
    SizeFunction{"Min", SizeFunctionKind::kMin, 1, kAnyParts},
    SizeFunction{"FloorToInt", SizeFunctionKind::kFloor, 1, 1},
    SizeFunction{"floor", SizeFunctionKind::kFloor, 1, 1},
    SizeFunction{"CeilToInt", SizeFunctionKind::kCeil, 1, 1},
    SizeFunction{"ceiling", SizeFunctionKind::kCeil, 1, 1},
    SizeFunction{"TruncToInt", SizeFunctionKind::kTrunc, 1, 1},
    SizeFunction{"TruncToFloat", SizeFunctionKind::kTrunc, 1, 1},
    SizeFunction{"Identity", SizeFunctionKind::kSame, 1, 1},
    SizeFunction{"ToFloat", SizeFunctionKind::kSame, 1, 1},
    SizeFunction{"LShift", SizeFunctionKind::kShiftLeft, 2, 2},
    SizeFunction{"RShift", SizeFunctionKind::kShiftRight, 2, 2},
};

}  // namespace

// A number, a symbol, or a function of further trees.
struct SizeExpression::Tree {
  SizeFunctionKind kind = SizeFunctionKind::kNumber;
  Fraction number;
  size_t symbol = 0;
  std::vector<Tree> parts;

  Fraction::Result evaluate(const SymbolSizes& sizes) const;
  // The function of its first, second and third part.
  Fraction::Result of_parts(Fraction a, Fraction b, Fraction c) const;
  std::optional<Linear> linear() const;
  void add_symbols(std::vector<size_t>& into) const;
  std::string text(const SizeSymbols& symbols) const;
  void add_key(std::string& into) const;
};

// A sum of symbols times numbers, by symbol and without zeros, and a number.
struct SizeExpression::Linear {
  std::vector<std::pair<size_t, Fraction>> factors;
  Fraction constant;

  bool add_scaled(const Linear& other, Fraction scale);
  void add_key(std::string& into) const;
  Fraction factor_of(size_t symbol) const {
    for (const auto& [each, factor] : factors) {
      if (each == symbol) return factor;
    }
    return {};
  }
};

size_t SizeSymbols::number_of(std::string_view name) {
  const auto found = numbers_.find(name);
  if (found != numbers_.end()) return found->second;
  names_.emplace_back(name);
  numbers_.emplace(name, names_.size() - 1);
  return names_.size() - 1;
}

// --- reading ---

class SizeExpressionParser {
 public:
  SizeExpressionParser(std::string_view text, SizeSymbols& symbols) : text_(text), symbols_(symbols) {}

  SizeExpression parse() {
    auto tree = std::make_shared<Tree>(call(0));
    if (at_ != text_.size()) fail();
    return SizeExpression(std::move(tree));
  }

  SizeExpression parse_infix() {
    auto tree = std::make_shared<Tree>(sum(0));
    skip_spaces();
    if (at_ != text_.size()) fail();
    return SizeExpression(std::move(tree));
  }

 private:
  using Tree = SizeExpression::Tree;
  static constexpr size_t kMaxDepth = 64;
  // Of a whole expression: a tree is as deep as a chain of quotients is long.
  static constexpr size_t kMaxTerms = 1000;

  [[noreturn]] void fail() const {
    throw ProgramError(fmt::format("a size of its program is no expression: '{}'", printable(text_)));
  }

  // Counts a number, a symbol or a function.
  void count_term() {
    if (++terms_ <= kMaxTerms) return;
    throw ProgramError(
        fmt::format("a size of its program has more than {} terms: '{}'", kMaxTerms, printable(text_)));
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool take(std::string_view token) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  void expect(std::string_view token) {
    if (!take(token)) fail();
  }

  std::string_view word() {
    skip_spaces();
    const size_t begin = at_;
    const auto belongs = [](char c) {
      return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    };
    while (at_ < text_.size() && belongs(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  int64_t integer() {
    skip_spaces();
    const size_t begin = at_;
    if (at_ < text_.size() && text_[at_] == '-') ++at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    const auto number = base::parse_integer(text_.substr(begin, at_ - begin));
    if (!number) fail();
    return *number;
  }

  Tree number(Fraction value) {
    count_term();
    Tree tree;
    tree.number = value;
    return tree;
  }

  Tree of(SizeFunctionKind kind, Tree a, Tree b) {
    count_term();
    Tree tree;
    tree.kind = kind;
    tree.parts.push_back(std::move(a));
    tree.parts.push_back(std::move(b));
    return tree;
  }

  // Appends to the sum or product that the same loop began.
  void append(SizeFunctionKind kind, Tree& tree, bool& is_begun, Tree part) {
    if (!is_begun) {
      tree = of(kind, std::move(tree), std::move(part));
    } else {
      tree.parts.push_back(std::move(part));
    }
    is_begun = true;
  }

  Tree negative(Tree tree) {
    if (tree.kind == SizeFunctionKind::kNumber) return number(tree.number.negative());
    return of(SizeFunctionKind::kMul, number({-1, 1}), std::move(tree));
  }

  Tree symbol(std::string_view name) {
    if (name.empty()) fail();
    count_term();
    Tree tree;
    tree.kind = SizeFunctionKind::kSymbol;
    tree.symbol = symbols_.number_of(name);
    return tree;
  }

  // "'s77', positive=True, integer=True)"
  Tree quoted_symbol() {
    expect("'");
    Tree tree = symbol(word());
    expect("'");
    const size_t end = text_.find(')', at_);
    if (end == std::string_view::npos) fail();
    at_ = end + 1;
    return tree;
  }

  template <typename Part>
  Tree function(std::string_view name, const Part& part) {
    const auto known = std::find_if(kSizeFunctions.begin(), kSizeFunctions.end(),
                                    [&](const SizeFunction& each) { return each.name == name; });
    if (known == kSizeFunctions.end()) {
      if (name.empty()) fail();
      throw ProgramError(fmt::format("a size of its program has the function '{}', which is not supported",
                                     printable(name)));
    }
    count_term();
    Tree tree;
    tree.kind = known->kind;
    do {
      tree.parts.push_back(part());
    } while (take(","));
    expect(")");
    if (tree.parts.size() < known->least_parts || tree.parts.size() > known->most_parts) fail();
    return tree;
  }

  // "Name(part, part)"
  Tree call(size_t depth) {
    if (depth > kMaxDepth) fail();
    const std::string_view name = word();
    expect("(");
    if (name == "Symbol") return quoted_symbol();
    if (name == "Integer" || name == "Rational") {
      const int64_t top = integer();
      int64_t bottom = 1;
      if (name == "Rational") {
        expect(",");
        bottom = integer();
      }
      expect(")");
      const Fraction::Result value = Fraction::of(top, bottom);
      if (!value) fail();
      return number(*value);
    }
    return function(name, [&] { return call(depth + 1); });
  }

  Tree sum(size_t depth) {
    if (depth > kMaxDepth) fail();
    const bool is_negative = take("-");
    Tree tree = product(depth);
    if (is_negative) tree = negative(std::move(tree));
    bool is_sum = false;
    while (true) {
      if (take("+")) {
        append(SizeFunctionKind::kAdd, tree, is_sum, product(depth));
      } else if (take("-")) {
        append(SizeFunctionKind::kAdd, tree, is_sum, negative(product(depth)));
      } else {
        return tree;
      }
    }
  }

  Tree product(size_t depth) {
    Tree tree = raised(depth);
    bool is_product = false;
    const auto divide = [&](SizeFunctionKind kind) {
      tree = of(kind, std::move(tree), raised(depth));
      is_product = false;
    };
    while (true) {
      if (take("//")) {
        divide(SizeFunctionKind::kFloorDiv);
      } else if (take("*")) {
        append(SizeFunctionKind::kMul, tree, is_product, raised(depth));
      } else if (take("/")) {
        divide(SizeFunctionKind::kDivide);
      } else if (take("%")) {
        divide(SizeFunctionKind::kMod);
      } else {
        return tree;
      }
    }
  }

  Tree raised(size_t depth) {
    Tree tree = atom(depth);
    if (!take("**")) return tree;
    return of(SizeFunctionKind::kPow, std::move(tree), atom(depth));
  }

  Tree atom(size_t depth) {
    if (take("(")) {
      Tree tree = sum(depth + 1);
      expect(")");
      return tree;
    }
    skip_spaces();
    if (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') return number({integer(), 1});
    const std::string_view name = word();
    if (!take("(")) return symbol(name);
    return function(name, [&] { return sum(depth + 1); });
  }

  std::string_view text_;
  SizeSymbols& symbols_;
  size_t at_ = 0;
  size_t terms_ = 0;
};

SizeExpression::SizeExpression(std::shared_ptr<const Tree> tree) : tree_(std::move(tree)) {
  tree_->add_symbols(symbols_);
  std::sort(symbols_.begin(), symbols_.end());
  symbols_.erase(std::unique(symbols_.begin(), symbols_.end()), symbols_.end());
  if (auto linear = tree_->linear()) {
    linear_ = std::make_shared<const Linear>(std::move(*linear));
    linear_->add_key(key_);
  } else {
    tree_->add_key(key_);
  }
}

SizeExpression SizeExpression::parse(std::string_view text, SizeSymbols& symbols) {
  return SizeExpressionParser(text, symbols).parse();
}

SizeExpression SizeExpression::parse_infix(std::string_view text, SizeSymbols& symbols) {
  return SizeExpressionParser(text, symbols).parse_infix();
}

// --- values ---

Fraction::Result SizeExpression::Tree::of_parts(Fraction a, Fraction b, Fraction c) const {
  switch (kind) {
    case SizeFunctionKind::kNumber:
    case SizeFunctionKind::kSymbol: return std::nullopt;
    // evaluate() has computed these from all parts.
    case SizeFunctionKind::kAdd:
    case SizeFunctionKind::kMul:
    case SizeFunctionKind::kMax:
    case SizeFunctionKind::kMin:
    case SizeFunctionKind::kSame: return a;
    case SizeFunctionKind::kPow: return Fraction::power(a, b);
    case SizeFunctionKind::kDivide: return Fraction::quotient(a, b);
    case SizeFunctionKind::kFloorDiv: return Fraction::floor_quotient(a, b);
    case SizeFunctionKind::kCeilDiv: {
      const Fraction::Result quotient = Fraction::quotient(a, b);
      return quotient ? Fraction::Result(quotient->ceiling()) : std::nullopt;
    }
    case SizeFunctionKind::kMod: return Fraction::remainder(a, b);
    case SizeFunctionKind::kModularIndexing: {
      const Fraction::Result quotient = Fraction::floor_quotient(a, b);
      return quotient ? Fraction::remainder(*quotient, c) : std::nullopt;
    }
    case SizeFunctionKind::kFloor: return a.floor();
    case SizeFunctionKind::kCeil: return a.ceiling();
    case SizeFunctionKind::kTrunc: return a.top < 0 ? a.ceiling() : a.floor();
    case SizeFunctionKind::kShiftLeft:
    case SizeFunctionKind::kShiftRight: {
      const Fraction::Result factor = Fraction::power({2, 1}, b);
      if (!factor) return std::nullopt;
      return kind == SizeFunctionKind::kShiftLeft ? Fraction::product(a, *factor)
                                                  : Fraction::floor_quotient(a, *factor);
    }
  }
  return std::nullopt;
}

Fraction::Result SizeExpression::Tree::evaluate(const SymbolSizes& sizes) const {
  if (kind == SizeFunctionKind::kNumber) return number;
  if (kind == SizeFunctionKind::kSymbol) {
    if (symbol >= sizes.size() || !sizes[symbol]) return std::nullopt;
    return Fraction::of(*sizes[symbol], 1);
  }
  std::array<Fraction, 3> values;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Fraction::Result value = parts[i].evaluate(sizes);
    if (!value) return std::nullopt;
    Fraction::Result folded = value;
    switch (i == 0 ? SizeFunctionKind::kSame : kind) {
      case SizeFunctionKind::kAdd: folded = Fraction::sum(values[0], *value); break;
      case SizeFunctionKind::kMul: folded = Fraction::product(values[0], *value); break;
      case SizeFunctionKind::kMax:
        if (!Fraction::is_less(values[0], *value)) folded = values[0];
        break;
      case SizeFunctionKind::kMin:
        if (!Fraction::is_less(*value, values[0])) folded = values[0];
        break;
      default: values.at(i) = *value; continue;
    }
    if (!folded) return std::nullopt;
    values[0] = *folded;
  }
  return of_parts(values[0], values[1], values[2]);
}

std::optional<int64_t> SizeExpression::value(const SymbolSizes& sizes) const {
  // No memory is allocated for one symbol, the most frequent expression.
  if (is_symbol()) return tree_->symbol < sizes.size() ? sizes[tree_->symbol] : std::nullopt;
  const Fraction::Result result = tree_->evaluate(sizes);
  return result && result->bottom == 1 ? std::optional(result->top) : std::nullopt;
}

bool SizeExpression::is_symbol() const { return tree_->kind == SizeFunctionKind::kSymbol; }

void SizeExpression::Tree::add_symbols(std::vector<size_t>& into) const {
  if (kind == SizeFunctionKind::kSymbol) into.push_back(symbol);
  for (const Tree& part : parts) part.add_symbols(into);
}

// --- sums ---

bool SizeExpression::Linear::add_scaled(const Linear& other, Fraction scale) {
  const auto accumulate = [&](Fraction& into, Fraction value) {
    const Fraction::Result scaled = Fraction::product(value, scale);
    const Fraction::Result total = scaled ? Fraction::sum(into, *scaled) : std::nullopt;
    if (total) into = *total;
    return total.has_value();
  };
  for (const auto& [symbol, factor] : other.factors) {
    auto place = std::lower_bound(factors.begin(), factors.end(), symbol,
                                  [](const auto& each, size_t wanted) { return each.first < wanted; });
    if (place == factors.end() || place->first != symbol) place = factors.insert(place, {symbol, {}});
    if (!accumulate(place->second, factor)) return false;
    if (place->second.top == 0) factors.erase(place);
  }
  return accumulate(constant, other.constant);
}

std::optional<SizeExpression::Linear> SizeExpression::Tree::linear() const {
  Linear result;
  switch (kind) {
    case SizeFunctionKind::kNumber: result.constant = number; return result;
    case SizeFunctionKind::kSymbol: result.factors = {{symbol, {1, 1}}}; return result;
    case SizeFunctionKind::kSame: return parts[0].linear();
    case SizeFunctionKind::kAdd:
      for (const Tree& part : parts) {
        const auto next = part.linear();
        if (!next || !result.add_scaled(*next, {1, 1})) return std::nullopt;
      }
      return result;
    case SizeFunctionKind::kMul: {
      Fraction scale{1, 1};
      result.constant = {1, 1};
      bool has_sum = false;
      for (const Tree& part : parts) {
        auto next = part.linear();
        if (!next || (!next->factors.empty() && has_sum)) return std::nullopt;
        if (next->factors.empty()) {
          const Fraction::Result product = Fraction::product(scale, next->constant);
          if (!product) return std::nullopt;
          scale = *product;
        } else {
          has_sum = true;
          result = std::move(*next);
        }
      }
      Linear scaled;
      if (!scaled.add_scaled(result, scale)) return std::nullopt;
      return scaled;
    }
    default: return std::nullopt;
  }
}

bool SizeExpression::is_linear_in(size_t symbol) const {
  return linear_ != nullptr && linear_->factor_of(symbol).top != 0;
}

std::optional<int64_t> SizeExpression::solve(size_t symbol, int64_t value, const SymbolSizes& sizes) const {
  Fraction::Result rest = Fraction::of(value, 1);
  const auto subtract = [&](Fraction factor, int64_t size) {
    const Fraction::Result whole = Fraction::of(size, 1);
    const Fraction::Result product = whole ? Fraction::product(factor, *whole) : std::nullopt;
    rest = rest && product ? Fraction::sum(*rest, product->negative()) : std::nullopt;
  };
  subtract(linear_->constant, 1);
  for (const auto& [each, factor] : linear_->factors) {
    if (each == symbol) continue;
    if (!sizes[each]) return std::nullopt;
    subtract(factor, *sizes[each]);
  }
  const Fraction::Result result = rest ? Fraction::quotient(*rest, linear_->factor_of(symbol)) : std::nullopt;
  return result && result->bottom == 1 ? std::optional(result->top) : std::nullopt;
}

void SizeExpression::Linear::add_key(std::string& into) const {
  into += "sum";
  for (const auto& [symbol, factor] : factors) {
    into += fmt::format(" {}*{}/{}", symbol, factor.top, factor.bottom);
  }
  into += fmt::format(" {}/{}", constant.top, constant.bottom);
}

void SizeExpression::Tree::add_key(std::string& into) const {
  into += fmt::format("({} {} {}/{}", static_cast<int>(kind), symbol, number.top, number.bottom);
  for (const Tree& part : parts) part.add_key(into);
  into += ')';
}

// --- text ---

std::string SizeExpression::Tree::text(const SizeSymbols& symbols) const {
  if (kind == SizeFunctionKind::kNumber) {
    return number.bottom == 1 ? std::to_string(number.top) : fmt::format("{}/{}", number.top, number.bottom);
  }
  if (kind == SizeFunctionKind::kSymbol) return symbols.name(symbol);
  const bool is_sum = kind == SizeFunctionKind::kAdd;
  std::string result;
  for (const Tree& part : parts) {
    std::string next = part.text(symbols);
    if (kind == SizeFunctionKind::kMul && part.kind == SizeFunctionKind::kAdd)
      next = fmt::format("({})", next);
    if (result.empty() || result == "-") {
      result += kind == SizeFunctionKind::kMul && next == "-1" && parts.size() > 1 ? "-" : next;
    } else if (is_sum && next.starts_with('-')) {
      result += " - " + next.substr(1);
    } else {
      result += (is_sum ? " + " : kind == SizeFunctionKind::kMul ? "*" : ", ") + next;
    }
  }
  if (is_sum || kind == SizeFunctionKind::kMul) return result;
  const auto named = std::find_if(kSizeFunctions.begin(), kSizeFunctions.end(),
                                  [&](const SizeFunction& each) { return each.kind == kind; });
  return fmt::format("{}({})", named->name, result);
}

std::string SizeExpression::text(const SizeSymbols& symbols) const { return tree_->text(symbols); }

}  // namespace lockstep::exported
