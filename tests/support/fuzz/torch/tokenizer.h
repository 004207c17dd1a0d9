#pragma once

#include <lockstep/error.h>

#include <string>
#include <string_view>

#include "recipes/byte_pair_tokenizer.h"
#include "support/fuzz/finding.h"
#include "support/fuzz/memory_file.h"

namespace lockstep::fuzz {

// A file tokenizer.json, and a text through the tokenizer and back.
inline bool takes_tokenizer(std::string_view bytes) {
  static MemoryFile file;
  try {
    const auto tokenizer = recipes::BytePairTokenizer::read({file.write(bytes)});
    std::string text;
    for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
    text += "hello<|endoftext|>  hello's 12";
    std::string decoded;
    for (const int64_t token : tokenizer.encode(text)) decoded += tokenizer.bytes_of(token);
    require(decoded == text, "the bytes of the tokens are the text");
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
