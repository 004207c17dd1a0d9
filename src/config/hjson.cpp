#include "config/hjson.h"

#include <fmt/format.h>

#include <map>
#include <optional>

#include "config/hjson_text.h"

namespace lockstep::config {
namespace {

constexpr int kMaxDepth = 64;

using Kind = HjsonNode::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

size_t digits_at(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && is_digit(text[end])) ++end;
  return end;
}

// JSON's numbers: no sign but minus, no leading zero, digits on both sides of a point.
bool is_number(std::string_view text) {
  size_t at = text.starts_with('-') ? 1 : 0;
  const size_t whole = digits_at(text, at);
  if (whole == at || (text[at] == '0' && whole > at + 1)) return false;
  at = whole;
  if (at < text.size() && text[at] == '.') {
    const size_t end = digits_at(text, at + 1);
    if (end == at + 1) return false;
    at = end;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    const size_t end = digits_at(text, at);
    if (end == at) return false;
    at = end;
  }
  return at == text.size();
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view name) : cursor_(text, name) {}

  HjsonNode document() {
    skip_space();
    HjsonNode root;
    if (cursor_.peek() == '{') {
      root = value(1);
      skip_space();
      if (!cursor_.at_end()) cursor_.fail_expected("nothing more after the last '}'");
    } else {
      if (cursor_.peek() == '[') cursor_.fail_expected("an object");
      root.kind = Kind::kObject;
      root.place = cursor_.place();
      if (!cursor_.at_end()) read_members(root, '\0', 1);
    }
    return root;
  }

 private:
  void skip_space() {
    while (!cursor_.at_end()) {
      const char c = cursor_.peek();
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        cursor_.advance();
      } else if (c == '#' || cursor_.starts_with("//")) {
        while (!cursor_.at_line_end()) cursor_.advance();
      } else if (cursor_.starts_with("/*")) {
        const TextPlace begin = cursor_.place();
        cursor_.advance(2);
        while (!cursor_.at_end() && !cursor_.starts_with("*/")) cursor_.advance();
        if (cursor_.at_end()) cursor_.fail(begin, "the comment has no end: expected '*/'");
        cursor_.advance(2);
      } else {
        return;
      }
    }
  }

  HjsonNode value(int depth) {
    if (depth > kMaxDepth) {
      cursor_.fail(cursor_.place(), fmt::format("nested more than {} deep", kMaxDepth));
    }
    HjsonNode node;
    node.place = cursor_.place();
    const char c = cursor_.peek();
    if (c == '{' || c == '[') {
      cursor_.advance();
      node.kind = c == '{' ? Kind::kObject : Kind::kArray;
      c == '{' ? read_members(node, '}', depth) : read_items(node, depth);
    } else if (c == '"' || c == '\'') {
      node.kind = Kind::kText;
      node.quoted = true;
      node.text = cursor_.starts_with("'''") ? read_lines_text(cursor_) : read_quoted_text(cursor_);
    } else {
      read_plain(node);
    }
    return node;
  }

  // Up to the bracket that closes; without one, up to the end.
  void read_members(HjsonNode& object, char close, int depth) {
    std::map<std::string, TextPlace> seen;
    skip_space();
    while (!closes(object, close)) {
      HjsonMember member = key();
      const auto [first, is_new] = seen.try_emplace(member.key, member.place);
      if (!is_new) {
        cursor_.fail(member.place,
                     fmt::format("the key {} is also at line {}, column {}: remove one of the two",
                                 quoted_for_message(member.key), first->second.line, first->second.column));
      }
      skip_space();
      if (cursor_.peek() != ':') {
        cursor_.fail_expected(fmt::format("':' after the key {}", quoted_for_message(member.key)));
      }
      cursor_.advance();
      skip_space();
      member.value = value(depth + 1);
      object.members.push_back(std::move(member));
      skip_comma();
    }
  }

  void read_items(HjsonNode& array, int depth) {
    skip_space();
    while (!closes(array, ']')) {
      array.items.push_back(value(depth + 1));
      skip_comma();
    }
  }

  void skip_comma() {
    skip_space();
    if (cursor_.peek() != ',') return;
    cursor_.advance();
    skip_space();
  }

  // Whether the bracket is here; then it is passed over.
  bool closes(const HjsonNode& node, char bracket) {
    if (cursor_.at_end()) {
      if (bracket == '\0') return true;
      std::string sentence =
          fmt::format("expected '{}' for the '{}' of line {}, column {}, found the end of the file", bracket,
                      bracket == '}' ? '{' : '[', node.place.line, node.place.column);
      if (swallowed_) {
        sentence += fmt::format("; the text without quotes of line {}, column {} reaches to its line's end",
                                swallowed_->line, swallowed_->column);
      }
      cursor_.fail(cursor_.place(), sentence);
    }
    if (bracket == '\0' || cursor_.peek() != bracket) return false;
    cursor_.advance();
    return true;
  }

  HjsonMember key() {
    const TextPlace begin = cursor_.place();
    const char first = cursor_.peek();
    if (first == '"' || first == '\'') return {read_quoted_text(cursor_), begin, {}};
    if (first == ':') cursor_.fail_expected("a key (an empty one needs quotes)");
    bool after_space = false;
    std::string_view name;
    for (; cursor_.peek() != ':'; cursor_.advance()) {
      const char c = cursor_.peek();
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        if (!after_space) name = cursor_.text_since(begin);
        after_space = true;
        continue;
      }
      if (cursor_.at_end() || after_space || std::string_view("{}[],").find(c) != std::string_view::npos) {
        if (cursor_.place().offset == begin.offset) cursor_.fail_expected("a key");
        cursor_.fail_expected(fmt::format(
            "':' after the key {}", quoted_for_message(after_space ? name : cursor_.text_since(begin))));
      }
    }
    return {std::string(after_space ? strip_space(name) : cursor_.text_since(begin)), begin, {}};
  }

  // true, false, null or a number, which end where a comma, a bracket or a comment begins;
  // anything else is a text up to the end of its line.
  void read_plain(HjsonNode& node) {
    if (cursor_.at_end() || std::string_view("{}[],:").find(cursor_.peek()) != std::string_view::npos) {
      cursor_.fail_expected("a value");
    }
    const TextPlace begin = cursor_.place();
    while (!ends_plain()) cursor_.advance();
    const std::string_view word = cursor_.text_since(begin);
    if (read_word(node, word)) return;
    while (!cursor_.at_line_end()) cursor_.advance();
    node.kind = Kind::kText;
    node.text = strip_space(cursor_.text_since(begin));
    if (node.text.find_first_of("}]") != std::string::npos) swallowed_ = begin;
  }

  bool ends_plain() const {
    return cursor_.at_line_end() || std::string_view(",}]#").find(cursor_.peek()) != std::string_view::npos ||
           cursor_.starts_with("//") || cursor_.starts_with("/*");
  }

  static bool read_word(HjsonNode& node, std::string_view word) {
    const std::string_view bare = strip_space(word);
    if (word.starts_with(bare) && (bare == "true" || bare == "false")) {
      node.kind = Kind::kBool;
      node.truth = bare == "true";
      return true;
    }
    if (word.starts_with(bare) && bare == "null") {
      node.kind = Kind::kNull;
      return true;
    }
    word = word.substr(0, word.find_last_not_of(" \t") + 1);
    if (!is_number(word)) return false;
    node.kind = Kind::kNumber;
    node.text = word;
    return true;
  }

  TextCursor cursor_;
  std::optional<TextPlace> swallowed_;  // the last text without quotes that took a bracket with it
};

}  // namespace

const HjsonNode* HjsonNode::find(std::string_view key) const {
  for (const HjsonMember& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

HjsonNode parse_hjson(std::string_view text, std::string_view name) { return Parser(text, name).document(); }

std::string_view kind_name(HjsonNode::Kind kind) {
  switch (kind) {
    case Kind::kObject: return "an object";
    case Kind::kArray: return "an array";
    case Kind::kText: return "a text";
    case Kind::kNumber: return "a number";
    case Kind::kBool: return "true or false";
    case Kind::kNull: return "null";
  }
  return "a value";
}

}  // namespace lockstep::config
