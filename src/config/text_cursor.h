#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::config {

// More is no text that somebody wrote.
inline constexpr size_t kMaxTextBytes = size_t{1} << 20;

// Where something stands in a text. Lines and columns count from 1, columns in characters.
struct TextPlace {
  size_t offset = 0;  // in bytes
  int line = 1;
  int column = 1;
};

// Goes through a text that somebody wrote, and knows where it is. Copies are cheap: a copy
// is a place to come back to. Text and name outlive it.
class TextCursor {
 public:
  // `name` is the file's name in messages. ConfigError: too large, no UTF-8, or a NUL; what
  // is no UTF-8 is named with its offset in bytes. A byte order mark is passed over.
  TextCursor(std::string_view text, std::string_view name);

  bool at_end() const { return place_.offset >= text_.size(); }
  // The byte here or further on; NUL, which the text does not hold, after its end.
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
  // The rest of the line in quotes, shortened: "'}, // more...'", or "the end of the file".
  std::string quoted_rest() const;

  // ConfigError "[config] name:line:column: sentence".
  [[noreturn]] void fail(const TextPlace& at, std::string_view sentence) const;
  // "expected ..., found ..." about what stands here.
  [[noreturn]] void fail_expected(std::string_view what) const;

 private:
  std::string_view text_;
  std::string_view name_;
  TextPlace place_;
};

// In quotes for a message: short, on one line, without control characters.
std::string quoted_for_message(std::string_view text);
// How many bytes the character at the front has; 0 where there is none in UTF-8.
size_t utf8_length(std::string_view text);
// Without white space at both ends, as Python's str.strip knows it: what a page of the web
// leaves in a copied line, too.
std::string_view strip_space(std::string_view text);

}  // namespace lockstep::config
