#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::config {

// The largest document. Larger files are not written by people.
inline constexpr size_t kMaxTextBytes = size_t{1} << 20;

// A place in a text. Lines and columns count from 1; columns count characters.
struct TextPlace {
  size_t offset = 0;  // in bytes
  int line = 1;
  int column = 1;
};

// Walks through a text and keeps track of line and column. Copies are cheap and serve as places to return
// to. Text and name must outlive the cursor.
class TextCursor {
 public:
  // `name` is the name of the file in messages. ConfigError: the text is too large, is not UTF-8 or
  // contains a NUL; the byte offset is named. A byte order mark is skipped.
  TextCursor(std::string_view text, std::string_view name);

  bool at_end() const { return place_.offset >= text_.size(); }
  // The byte at the cursor or `ahead` bytes after it; NUL after the end.
  char peek(size_t ahead = 0) const {
    const size_t at = place_.offset + ahead;
    return at < text_.size() ? text_[at] : '\0';
  }
  bool starts_with(std::string_view prefix) const { return rest().starts_with(prefix); }
  bool at_line_end() const { return at_end() || peek() == '\n' || peek() == '\r'; }
  void advance(size_t bytes = 1);

  const TextPlace& place() const { return place_; }
  std::string_view rest() const { return text_.substr(place_.offset); }
  std::string_view text_since(const TextPlace& begin) const {
    return text_.substr(begin.offset, place_.offset - begin.offset);
  }
  // The rest of the line for messages, quoted and shortened: "'}, // more...'", or "the end of the file".
  std::string quoted_rest() const;

  // ConfigError "[config] name:line:column: sentence".
  [[noreturn]] void fail(const TextPlace& at, std::string_view sentence) const;
  // "expected ..., found ..." at the cursor.
  [[noreturn]] void fail_expected(std::string_view what) const;

 private:
  std::string_view text_;
  std::string_view name_;
  TextPlace place_;
};

// The text in quotes for a message: short, on one line, without control characters.
std::string quoted_for_message(std::string_view text);
// The number of bytes of the first character; 0: no valid UTF-8.
size_t utf8_length(std::string_view text);
// Removes white space at both ends, as Python's str.strip does: also Unicode spaces, which lines copied
// from web pages contain.
std::string_view strip_space(std::string_view text);

}  // namespace lockstep::config
