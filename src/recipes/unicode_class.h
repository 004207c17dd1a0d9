#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep::recipes {

// What GPT-2's tokenizer distinguishes: \p{L}, \p{N}, \s and everything else, by Unicode 16.0.
enum class UnicodeClass { kLetter, kNumber, kSpace, kOther };

UnicodeClass unicode_class(char32_t code_point);

struct Utf8Character {
  size_t bytes = 1;
  UnicodeClass kind = UnicodeClass::kOther;
};

// The character at the beginning of `text`, which is not empty. A byte that begins no valid UTF-8 is a
// character of its own, of the class kOther.
Utf8Character first_character(std::string_view text);

}  // namespace lockstep::recipes
