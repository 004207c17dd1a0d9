#pragma once

#include <lockstep/error.h>
#include <torch/torch.h>

#include <cstdint>
#include <string_view>

#include "recipes/token_data.h"
#include "support/fuzz/finding.h"
#include "support/fuzz/memory_file.h"

namespace lockstep::fuzz {

// A file of tokens as llm.c or nanoGPT writes it. Every token is read through windows.
inline bool takes_token_file(std::string_view bytes) {
  static MemoryFile file;
  constexpr int64_t kContext = 3;
  try {
    const recipes::TokenPiece piece = recipes::open_token_file(file.write(bytes));
    const int64_t tokens = piece.tokens.numel();
    require(tokens > 0 && static_cast<size_t>(2 * tokens) <= bytes.size(), "the tokens are in the file");
    const recipes::TokenWindows windows({piece}, kContext, /*vocabulary=*/0x10000);
    for (int64_t i = 0; i < windows.size(); ++i) {
      const Example example = windows.get(i, 0);
      require(at::equal(example[0].slice(0, 1), example[1].slice(0, 0, kContext - 1)),
              "the targets are the inputs, one place later");
    }
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
