#include "config/text_cursor.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <array>

namespace lockstep::config {
namespace {

constexpr size_t kMaxQuotedBytes = 40;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// The characters that Python counts as white space, except \r.
constexpr std::array<std::string_view, 28> kSpaces = {"\x0b",         "\x0c",
                                                      "\x1c",         "\x1d",
                                                      "\x1e",         "\x1f",
                                                      "\xc2\x85",     "\xc2\xa0",
                                                      "\xe1\x9a\x80", "\xe2\x80\x80",
                                                      "\xe2\x80\x81", "\xe2\x80\x82",
                                                      "\xe2\x80\x83", "\xe2\x80\x84",
                                                      "\xe2\x80\x85", "\xe2\x80\x86",
                                                      "\xe2\x80\x87", "\xe2\x80\x88",
                                                      "\xe2\x80\x89", "\xe2\x80\x8a",
                                                      "\xe2\x80\xa8", "\xe2\x80\xa9",
                                                      "\xe2\x80\xaf", "\xe2\x81\x9f",
                                                      "\xe3\x80\x80", " ",
                                                      "\t",           "\n"};

size_t space_in_front(std::string_view text) {
  if (text.starts_with('\r')) return 1;
  const auto found =
      std::find_if(kSpaces.begin(), kSpaces.end(), [&](auto s) { return text.starts_with(s); });
  return found == kSpaces.end() ? 0 : found->size();
}

size_t space_at_end(std::string_view text) {
  if (text.ends_with('\r')) return 1;
  const auto found = std::find_if(kSpaces.begin(), kSpaces.end(), [&](auto s) { return text.ends_with(s); });
  return found == kSpaces.end() ? 0 : found->size();
}

void check_bytes(TextCursor& cursor) {
  if (cursor.starts_with("\xff\xfe") || cursor.starts_with("\xfe\xff")) {
    cursor.fail(cursor.place(), "the text is UTF-16: save it as UTF-8");
  }
  while (!cursor.at_end()) {
    const size_t length = utf8_length(cursor.rest());
    const size_t offset = cursor.place().offset;
    const auto byte = static_cast<unsigned char>(cursor.peek());
    if (length == 0) {
      cursor.fail(cursor.place(),
                  fmt::format("the text is not UTF-8: byte 0x{:02x} at offset {}", byte, offset));
    }
    if (byte == 0) cursor.fail(cursor.place(), fmt::format("the text contains a NUL: at offset {}", offset));
    cursor.advance(length);
  }
}

}  // namespace

TextCursor::TextCursor(std::string_view text, std::string_view name) : text_(text), name_(name) {
  if (text.size() > kMaxTextBytes) {
    fail(place_, fmt::format("the text has {} bytes, the limit is {}", text.size(), kMaxTextBytes));
  }
  TextCursor check = *this;
  check_bytes(check);
  if (starts_with(kByteOrderMark)) place_.offset = kByteOrderMark.size();
}

void TextCursor::advance(size_t bytes) {
  for (; bytes > 0 && !at_end(); --bytes) {
    const char c = peek();
    ++place_.offset;
    // "\r\n" is one line end.
    if (c == '\n' || (c == '\r' && peek() != '\n')) {
      ++place_.line;
      place_.column = 1;
    } else if (!is_continuation(c)) {
      ++place_.column;
    }
  }
}

std::string TextCursor::quoted_rest() const {
  if (at_end()) return "the end of the file";
  std::string_view line = rest();
  line = line.substr(0, line.find_first_of("\r\n"));
  return line.empty() ? "the end of the line" : quoted_for_message(line);
}

void TextCursor::fail(const TextPlace& at, std::string_view sentence) const {
  throw ConfigError("config", fmt::format("{}:{}:{}: {}", name_, at.line, at.column, sentence));
}

void TextCursor::fail_expected(std::string_view what) const {
  fail(place_, fmt::format("expected {}, found {}", what, quoted_rest()));
}

std::string quoted_for_message(std::string_view text) {
  size_t size = std::min(text.size(), kMaxQuotedBytes);
  while (size < text.size() && size > 0 && is_continuation(text[size])) --size;
  std::string shown(text.substr(0, size));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return fmt::format("'{}{}'", shown, size < text.size() ? "..." : "");
}

size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  if (!std::all_of(text.begin() + 1, text.begin() + static_cast<std::ptrdiff_t>(length), is_continuation))
    return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool no_character = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
  return overlong || no_character ? 0 : length;
}

std::string_view strip_space(std::string_view text) {
  while (const size_t size = space_in_front(text)) text.remove_prefix(size);
  while (const size_t size = space_at_end(text)) text.remove_suffix(size);
  return text;
}

}  // namespace lockstep::config
