#include "config/hjson_text.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>

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

// The four digits after \u; the cursor stands on the backslash.
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
    if (low < 0xdc00 || low > 0xdfff) cursor.fail(begin, "half of a surrogate pair is no character");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  if (code >= 0xd800 && code <= 0xdfff) cursor.fail(begin, "half of a surrogate pair is no character");
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

}  // namespace

std::string read_quoted_text(TextCursor& cursor) {
  const TextPlace begin = cursor.place();
  const char quote = cursor.peek();
  cursor.advance();
  std::string text;
  while (cursor.peek() != quote) {
    const char c = cursor.peek();
    if (cursor.at_line_end()) {
      cursor.fail(begin,
                  fmt::format("the text has no end: expected {} before {}", quote, cursor.quoted_rest()));
    }
    if (c == '\\') {
      read_escape(cursor, text);
      continue;
    }
    if (static_cast<unsigned char>(c) < 0x20) {
      cursor.fail(cursor.place(), fmt::format("a control character in a text in quotes: 0x{:02x}", c));
    }
    text += c;
    cursor.advance();
  }
  cursor.advance();
  return text;
}

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
    if (cursor.at_end()) cursor.fail(begin, "the text has no end: expected '''");
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

}  // namespace lockstep::config
