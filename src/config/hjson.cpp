#include "config/hjson.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <sodium.h>

#include <cctype>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/file.h"
#include "config/text_cursor.h"

namespace lockstep::config {
namespace {

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr uint32_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(kLead[tail] | (code >> (6 * tail)));
  for (int i = tail - 1; i >= 0; --i) out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3f));
}

std::optional<uint32_t> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// Reads \u and its four digits. The cursor is on the backslash.
uint32_t read_unit(TextCursor& cursor) {
  uint32_t unit = 0;
  for (size_t i = 2; i < 6; ++i) {
    const std::optional<uint32_t> digit = hex_digit(cursor.peek(i));
    if (!digit) cursor.fail_expected("\\u with four hexadecimal digits");
    unit = unit * 16 + *digit;
  }
  cursor.advance(6);
  return unit;
}

void read_code_point(TextCursor& cursor, std::string& out) {
  const TextPlace begin = cursor.place();
  uint32_t code = read_unit(cursor);
  if (code >= 0xd800 && code < 0xdc00 && cursor.starts_with("\\u")) {
    const uint32_t low = read_unit(cursor);
    if (low < 0xdc00 || low > 0xdfff) cursor.fail(begin, "half of a surrogate pair is not a character");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  if (code >= 0xd800 && code <= 0xdfff) cursor.fail(begin, "half of a surrogate pair is not a character");
  append_utf8(out, code);
}

void read_escape(TextCursor& cursor, std::string& out) {
  switch (cursor.peek(1)) {
    case '"':
    case '\'':
    case '\\':
    case '/': out += cursor.peek(1); break;
    case 'b': out += '\b'; break;
    case 'f': out += '\f'; break;
    case 'n': out += '\n'; break;
    case 'r': out += '\r'; break;
    case 't': out += '\t'; break;
    case 'u': read_code_point(cursor, out); return;
    default: cursor.fail_expected(R"(one of \" \' \\ \/ \b \f \n \r \t \u)");
  }
  cursor.advance(2);
}

void skip_indent(TextCursor& cursor, int most) {
  for (; most > 0 && (cursor.peek() == ' ' || cursor.peek() == '\t'); --most) cursor.advance();
}

void skip_line_end(TextCursor& cursor) { cursor.advance(cursor.starts_with("\r\n") ? 2 : 1); }

// 'text' or "text" on one line, with JSON's escapes. The cursor is on the first quote before the call and
// behind the last one after it.
std::string read_quoted_text(TextCursor& cursor) {
  const TextPlace begin = cursor.place();
  const char quote = cursor.peek();
  cursor.advance();
  std::string text;
  while (cursor.peek() != quote) {
    const char c = cursor.peek();
    if (cursor.at_line_end()) {
      cursor.fail(begin,
                  fmt::format("the string has no end: expected {} before {}", quote, cursor.quoted_rest()));
    }
    if (c == '\\') {
      read_escape(cursor, text);
      continue;
    }
    if (static_cast<unsigned char>(c) < 0x20) {
      cursor.fail(cursor.place(), fmt::format("a control character in a quoted string: 0x{:02x}", c));
    }
    text += c;
    cursor.advance();
  }
  cursor.advance();
  return text;
}

// '''text''' over any number of lines, without escapes. White space up to the column of the first quote
// does not belong to a line, nor does the line end before the last quotes. The cursor moves as above.
std::string read_lines_text(TextCursor& cursor) {
  const TextPlace begin = cursor.place();
  const int indent = begin.column - 1;
  cursor.advance(3);
  while (cursor.peek() == ' ' || cursor.peek() == '\t') cursor.advance();
  if (!cursor.at_end() && cursor.at_line_end()) {
    skip_line_end(cursor);
    skip_indent(cursor, indent);
  }
  std::string text;
  while (!cursor.starts_with("'''")) {
    if (cursor.at_end()) cursor.fail(begin, "the string has no end: expected '''");
    if (cursor.at_line_end()) {
      text += '\n';
      skip_line_end(cursor);
      skip_indent(cursor, indent);
    } else {
      text += cursor.peek();
      cursor.advance();
    }
  }
  cursor.advance(3);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

constexpr int kMaxDepth = 64;

using Kind = HjsonNode::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

size_t digits_at(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && is_digit(text[end])) ++end;
  return end;
}

// Accepts JSON's numbers: no plus sign, no leading zero, digits on both sides of the point.
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

  // Reads up to the closing bracket, or up to the end if `close` is NUL.
  void read_members(HjsonNode& object, char close, int depth) {
    std::map<std::string, TextPlace> seen;
    skip_space();
    while (!closes(object, close)) {
      HjsonMember member = key();
      const auto [first, is_new] = seen.try_emplace(member.key, member.place);
      if (!is_new) {
        cursor_.fail(member.place,
                     fmt::format("duplicate key {}: it is also at line {}, column {}; remove one of the two",
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

  // Whether the cursor is on the bracket, which is then skipped.
  bool closes(const HjsonNode& node, char bracket) {
    if (cursor_.at_end()) {
      if (bracket == '\0') return true;
      std::string sentence =
          fmt::format("expected '{}' for the '{}' of line {}, column {}, found the end of the file", bracket,
                      bracket == '}' ? '{' : '[', node.place.line, node.place.column);
      if (swallowed_) {
        sentence += fmt::format("; the unquoted string at line {}, column {} reaches to the end of its line",
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

  // true, false, null and numbers end at a comma, a bracket or a comment. Everything else is a string up
  // to the end of the line.
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
  std::optional<TextPlace> swallowed_;  // the last unquoted string that contains a bracket
};

std::optional<std::string> decode_base64(const std::string& text, int variant) {
  std::string bytes(text.size() * 3 / 4 + 3, '\0');
  size_t size = 0;
  if (sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                        text.size(), "\r\n", &size, nullptr, variant) != 0) {
    return std::nullopt;
  }
  bytes.resize(size);
  return bytes;
}

// A misspelt path may be valid base64; a document is text.
bool is_text(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t length = utf8_length(bytes);
    const auto lead = static_cast<unsigned char>(bytes[0]);
    if (length == 0 || (lead < 0x20 && !std::isspace(lead))) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

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
    case Kind::kText: return "a string";
    case Kind::kNumber: return "a number";
    case Kind::kBool: return "true or false";
    case Kind::kNull: return "null";
  }
  return "a value";
}

HjsonSource read_hjson_file(const std::filesystem::path& path) {
  const auto fail = [](const std::filesystem::path& at, const std::string& reason) {
    throw ConfigError("config",
                      fmt::format("cannot read the configuration file '{}': {}", at.string(), reason));
  };
  // A regular file only: the text of a pipe would reach one of the ranks.
  const base::InputFile file(path, fail);
  if (file.bytes() > static_cast<int64_t>(kMaxTextBytes)) {
    fail(path, fmt::format("it has {} bytes, the limit is {}", file.bytes(), kMaxTextBytes));
  }
  return {path.string(), file.read_some(kMaxTextBytes, 0)};
}

HjsonSource read_hjson_argument(const std::string& path_or_base64) {
  if (path_or_base64.empty()) {
    throw ConfigError("config", "expected a configuration file or its text in base64: the argument is empty");
  }
  std::error_code ignored;
  if (std::filesystem::exists(path_or_base64, ignored)) return read_hjson_file(path_or_base64);
  for (const int variant : {sodium_base64_VARIANT_URLSAFE, sodium_base64_VARIANT_URLSAFE_NO_PADDING}) {
    const std::optional<std::string> text = decode_base64(path_or_base64, variant);
    if (text && is_text(*text)) return {"base64", *text};
  }
  throw ConfigError("config", fmt::format("neither a configuration file nor a text in URL-safe base64: {}",
                                          quoted_for_message(path_or_base64)));
}

}  // namespace lockstep::config
