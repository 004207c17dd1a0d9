#include "cluster/slurm_notation.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <cstdint>
#include <vector>

#include "base/number.h"

namespace lockstep::cluster {
namespace {

constexpr size_t kMaxNameBytes = 255;
constexpr size_t kMaxDigits = 18;  // always fits int64_t
constexpr int64_t kMaxCount = 1 << 20;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The characters of a name outside brackets.
bool is_name_char(char c) {
  return c > ' ' && c < 127 && c != '[' && c != ']' && c != ',' && c != '(' && c != ')';
}

struct Number {
  int64_t value = 0;
  size_t digits = 0;
  size_t column = 0;
};

class Cursor {
 public:
  Cursor(std::string_view text, std::string_view source, std::string_view what)
      : text_(text), source_(source), what_(what) {}

  bool at_end() const { return position_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[position_]; }
  size_t column() const { return position_ + 1; }

  bool accept(char c) {
    if (at_end() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  void expect(char c) {
    if (accept(c)) return;
    if (at_end()) fail(fmt::format("it ends where '{}' is expected", c));
    fail(fmt::format("'{}' is expected", c));
  }

  std::string_view take_name() {
    const size_t begin = position_;
    while (!at_end() && is_name_char(text_[position_])) ++position_;
    return text_.substr(begin, position_ - begin);
  }

  Number take_number() {
    const size_t begin = position_;
    while (!at_end() && is_digit(text_[position_])) ++position_;
    const std::string_view digits = text_.substr(begin, position_ - begin);
    if (digits.empty()) fail(at_end() ? "it ends where a number is expected" : "a number is expected");
    if (digits.size() > kMaxDigits) fail("a number is too long", begin + 1);
    return {*base::parse_integer(digits), digits.size(), begin + 1};
  }

  [[noreturn]] void fail(std::string_view why) const { fail(why, column()); }
  [[noreturn]] void fail(std::string_view why, size_t column) const {
    throw ConfigError("cluster", fmt::format("{} is not a {}: {} at column {}: {}='{}'", source_, what_, why,
                                             column, source_, text_));
  }

 private:
  std::string_view text_;
  std::string_view source_;
  std::string_view what_;
  size_t position_ = 0;
};

using Choices = std::vector<std::string>;

void append_range(Cursor& cursor, Choices& choices) {
  const Number low = cursor.take_number();
  Number high = low;
  if (cursor.accept('-')) high = cursor.take_number();
  if (high.value < low.value) {
    cursor.fail(fmt::format("the range {}-{} runs backwards", low.value, high.value), low.column);
  }
  // The difference avoids overflow: both ends may be near the largest number.
  if (high.value - low.value >= kMaxHosts - static_cast<int64_t>(choices.size())) {
    cursor.fail(fmt::format("more than {} hosts", kMaxHosts), low.column);
  }
  for (int64_t value = low.value; value <= high.value; ++value) {
    choices.push_back(fmt::format("{:0{}}", value, low.digits));
  }
}

Choices take_group(Cursor& cursor) {
  Choices choices;
  cursor.expect('[');
  do {
    append_range(cursor, choices);
  } while (cursor.accept(','));
  cursor.expect(']');
  return choices;
}

void append_item(Cursor& cursor, std::vector<std::string>& hosts) {
  const size_t column = cursor.column();
  Choices names{""};
  const int64_t room = kMaxHosts - static_cast<int64_t>(hosts.size());
  while (true) {
    Choices choices;
    if (cursor.peek() == '[') {
      choices = take_group(cursor);
    } else {
      choices.emplace_back(cursor.take_name());
      if (choices.front().empty()) break;
    }
    if (static_cast<int64_t>(names.size()) > room / static_cast<int64_t>(choices.size())) {
      cursor.fail(fmt::format("more than {} hosts", kMaxHosts), column);
    }
    Choices longer;
    longer.reserve(names.size() * choices.size());
    for (const std::string& name : names) {
      for (const std::string& choice : choices) longer.push_back(name + choice);
    }
    names = std::move(longer);
    if (names.back().size() > kMaxNameBytes) cursor.fail("a host name is too long", column);
  }
  if (names.front().empty())
    cursor.fail(cursor.at_end() ? "it ends where a host is expected" : "a host is expected");
  hosts.insert(hosts.end(), std::make_move_iterator(names.begin()), std::make_move_iterator(names.end()));
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view text, std::string_view source) {
  Cursor cursor(text, source, "node list");
  std::vector<std::string> hosts;
  do {
    append_item(cursor, hosts);
  } while (cursor.accept(','));
  if (!cursor.at_end()) cursor.fail("a comma or the end is expected");
  return hosts;
}

std::vector<int> expand_counts(std::string_view text, std::string_view source) {
  Cursor cursor(text, source, "list of counts");
  std::vector<int> counts;
  do {
    const Number count = cursor.take_number();
    if (count.value < 1 || count.value > kMaxCount) {
      cursor.fail(fmt::format("a count must be from 1 to {}", kMaxCount), count.column);
    }
    int64_t repetitions = 1;
    if (cursor.accept('(')) {
      cursor.expect('x');
      const Number number = cursor.take_number();
      repetitions = number.value;
      if (repetitions < 1) cursor.fail("a repetition must be at least 1", number.column);
      cursor.expect(')');
    }
    if (repetitions > kMaxHosts - static_cast<int64_t>(counts.size())) {
      cursor.fail(fmt::format("more than {} nodes", kMaxHosts), count.column);
    }
    counts.insert(counts.end(), static_cast<size_t>(repetitions), static_cast<int>(count.value));
  } while (cursor.accept(','));
  if (!cursor.at_end()) cursor.fail("a comma or the end is expected");
  return counts;
}

namespace {

constexpr int64_t kMaxSeconds = int64_t{10} * 365 * 24 * 3600;

std::optional<int64_t> parse_part(std::string_view text) {
  const std::optional<int64_t> value = base::parse_integer(text);
  if (!value || *value < 0 || *value > kMaxSeconds || text.front() == '-') return std::nullopt;
  return value;
}

// Numbers between colons; nullopt if one is broken.
std::optional<std::vector<int64_t>> parse_parts(std::string_view text) {
  std::vector<int64_t> parts;
  while (true) {
    const size_t colon = text.find(':');
    const std::optional<int64_t> part = parse_part(text.substr(0, colon));
    if (!part) return std::nullopt;
    parts.push_back(*part);
    if (colon == std::string_view::npos) return parts;
    text.remove_prefix(colon + 1);
  }
}

// weight: seconds per unit of the first part; each following part weighs 60 times less.
int64_t sum(const std::vector<int64_t>& parts, int64_t weight) {
  int64_t seconds = 0;
  for (const int64_t part : parts) {
    seconds += part * weight;
    weight /= 60;
  }
  return seconds;
}

std::optional<int64_t> parse_seconds(std::string_view text) {
  const size_t dash = text.find('-');
  const bool has_days = dash != std::string_view::npos && dash > 0;
  const std::optional<int64_t> days = has_days ? parse_part(text.substr(0, dash)) : 0;
  if (!days) return std::nullopt;
  if (has_days) text.remove_prefix(dash + 1);
  const std::optional<std::vector<int64_t>> parts = parse_parts(text);
  if (!parts || parts->size() > 3) return std::nullopt;
  constexpr int64_t kMinute = 60;
  constexpr int64_t kHour = 3600;
  return *days * 24 * kHour + sum(*parts, has_days || parts->size() == 3 ? kHour : kMinute);
}

}  // namespace

std::optional<std::chrono::seconds> parse_time_limit(std::string_view text) {
  const std::optional<int64_t> seconds = parse_seconds(text);
  if (!seconds || *seconds < 1 || *seconds > kMaxSeconds) return std::nullopt;
  return std::chrono::seconds(*seconds);
}

}  // namespace lockstep::cluster
