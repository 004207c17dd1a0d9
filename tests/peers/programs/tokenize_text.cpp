// What test_tokenizer.py compares with Hugging Face's tokenizers:
//
//   tokenize_text FILE...
//
// Reads texts from standard input, each a JSON string in a line of its own. Prints for each a line of JSON:
// the tokens, the numbers of bytes of GPT-2's pieces, and whether the bytes of the tokens are the text.

#include <lockstep/json.h>

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "recipes/byte_pair_tokenizer.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  const auto tokenizer =
      recipes::BytePairTokenizer::read(std::vector<std::filesystem::path>(argv + 1, argv + argc));
  for (std::string line; std::getline(std::cin, line);) {
    const std::string text = Json::parse(line).text();
    const std::vector<int64_t> tokens = tokenizer.encode(text);
    std::string decoded;
    for (const int64_t token : tokens) decoded += tokenizer.bytes_of(token);
    std::vector<size_t> pieces;
    for (const std::string_view piece : recipes::gpt2_pieces(text)) pieces.push_back(piece.size());
    const Json answer = {{"tokens", Json(tokens)}, {"pieces", Json(pieces)}, {"returns", decoded == text}};
    std::cout << answer.dump() << '\n';
  }
}
