#include "deepspeed/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "base/number.h"

namespace lockstep::deepspeed {
namespace {

using config::HjsonNode;
using Kind = HjsonNode::Kind;

[[noreturn]] void expected(const std::string& what) { throw std::invalid_argument(what); }

std::string in_range(const Range& range) {
  const auto text = [](double value) { return fmt::format("{:.15g}", value); };
  std::string result;
  if (range.least && range.most && !range.above && !range.below) {
    return fmt::format(" from {} to {}", text(*range.least), text(*range.most));
  }
  if (range.least) result = fmt::format(" {} {}", range.above ? "above" : "of at least", text(*range.least));
  if (range.most) {
    result += fmt::format("{} {} {}", result.empty() ? "" : " and", range.below ? "below" : "of at most",
                          text(*range.most));
  }
  return result;
}

bool is_in(double value, const Range& range) {
  if (range.least && (value < *range.least || (range.above && value == *range.least))) return false;
  return !range.most || value < *range.most || (!range.below && value == *range.most);
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// The number's text is JSON's, which strtod takes in the C locale; nothing here sets another.
double real_of(const HjsonNode& node) { return std::strtod(node.text.c_str(), nullptr); }

// Also 5e8 and 1.0.
std::optional<int64_t> whole_of(const HjsonNode& node) {
  if (const auto integer = base::parse_integer(node.text)) return integer;
  constexpr double kExact = 9007199254740992;  // up to here a double holds every whole number
  const double real = real_of(node);
  if (!std::isfinite(real) || real != std::floor(real) || std::abs(real) > kExact) return std::nullopt;
  return static_cast<int64_t>(real);
}

}  // namespace

bool read_bool(const HjsonNode& node) {
  if (node.kind != Kind::kBool) expected("true or false");
  return node.truth;
}

int64_t read_integer(const HjsonNode& node, const Range& range) {
  const std::optional<int64_t> value = node.kind == Kind::kNumber ? whole_of(node) : std::nullopt;
  if (!value || !is_in(static_cast<double>(*value), range)) expected("a whole number" + in_range(range));
  return *value;
}

double read_real(const HjsonNode& node, const Range& range) {
  const double value = node.kind == Kind::kNumber ? real_of(node) : std::nan("");
  if (!std::isfinite(value) || !is_in(value, range)) expected("a number" + in_range(range));
  return value;
}

std::string read_text(const HjsonNode& node) {
  if (node.kind != Kind::kText) expected("a text");
  return node.text;
}

std::vector<std::string> read_texts(const HjsonNode& node) {
  if (node.kind != Kind::kArray) expected("a list of texts");
  std::vector<std::string> texts;
  for (const HjsonNode& item : node.items) {
    if (item.kind != Kind::kText) expected("a list of texts");
    texts.push_back(item.text);
  }
  return texts;
}

std::array<double, 2> read_pair(const HjsonNode& node, const Range& range) {
  const std::string what = "a list of two numbers" + in_range(range);
  if (node.kind != Kind::kArray || node.items.size() != 2) expected(what);
  std::array<double, 2> pair{};
  for (size_t i = 0; i < 2; ++i) {
    const double value = node.items[i].kind == Kind::kNumber ? real_of(node.items[i]) : std::nan("");
    if (!std::isfinite(value) || !is_in(value, range)) expected(what);
    pair[i] = value;
  }
  return pair;
}

bool is_name(const HjsonNode& node, std::string_view name) {
  return node.kind == Kind::kText && equal_ignoring_case(name, node.text);
}

void fail_name(const std::vector<std::string_view>& names) {
  expected(names.size() == 1 ? std::string(names[0]) : fmt::format("one of {}", fmt::join(names, ", ")));
}

std::string shown(const HjsonNode& node) {
  switch (node.kind) {
    case Kind::kText: {
      const bool swallowed = !node.quoted && node.text.find_first_of(",}]") != std::string::npos;
      return config::quoted_for_message(node.text) +
             (swallowed ? "; a text without quotes reaches to its line's end" : "");
    }
    case Kind::kNumber: return node.text.size() > 40 ? node.text.substr(0, 40) + "..." : node.text;
    case Kind::kBool: return node.truth ? "true" : "false";
    default: return std::string(config::kind_name(node.kind));
  }
}

bool equals_json(const HjsonNode& node, std::string_view json) {
  switch (node.kind) {
    case Kind::kNull: return json == "null";
    case Kind::kBool: return json == (node.truth ? "true" : "false");
    case Kind::kNumber: {
      char* end = nullptr;
      const std::string text(json);
      return std::strtod(text.c_str(), &end) == real_of(node) && end != text.c_str();
    }
    case Kind::kText: return json == fmt::format("\"{}\"", node.text);
    case Kind::kArray: return json == "[]" && node.items.empty();
    case Kind::kObject: return json == "{}" && node.members.empty();
  }
  return false;
}

}  // namespace lockstep::deepspeed
