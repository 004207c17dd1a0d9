#pragma once

#include <lockstep/data.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::recipes {

class BytePairTokenizer;

// Tokens in one piece, of 8 or 16 bits each, in memory or in a mapped file.
struct TokenPiece {
  std::string name;   // for errors
  at::Tensor tokens;  // one dimension, uint8 or int16, whose bits are those of a uint16
};

// A sequence of pieces. Windows of tokens do not cross from one into the next.
using TokenPieces = std::vector<TokenPiece>;

// What is trained on, and what validates.
struct TokenSplit {
  TokenPieces train;
  TokenPieces validation;
};

// A file of uint16 tokens: llm.c's, with its header of 256 int32, or nanoGPT's, without. It is mapped, not
// read. ConfigError: it cannot be read, or the header is that of another format.
TokenPiece open_token_file(const std::filesystem::path& file);

// Of a folder: the files *.bin with "train" in their names, and those with "val"; of one file, its first
// part and the rest. ConfigError: there are none.
TokenSplit open_tokens(const std::filesystem::path& path, double train_fraction);
// The bytes of a text file, or its tokens by this tokenizer. ConfigError: it cannot be read, or the
// tokenizer has more than 65,536 tokens.
TokenSplit read_text_tokens(const std::filesystem::path& file, const BytePairTokenizer* tokenizer,
                            double train_fraction);
// Words of a made-up language that a model can learn: each token has four successors, one of them
// frequent. Tokens are below 256 and below `vocabulary`.
TokenSplit synthetic_tokens(int64_t vocabulary, double train_fraction);

// Windows of `context` tokens, one behind the other, and the tokens that follow each of their places:
// batches of [N, context] int64 twice. Tokens must be below `vocabulary`; get_batch() throws ConfigError
// that names the file and the place otherwise.
class TokenWindows : public Dataset {
 public:
  TokenWindows(TokenPieces pieces, int64_t context, int64_t vocabulary);

  int64_t size() const override { return size_; }
  Example get(int64_t index, uint64_t seed) const override;
  Batch get_batch(std::span<const int64_t> indices, const SampleSeeds& seeds) const override;

 private:
  void copy_window(int64_t index, int64_t* inputs, int64_t* targets) const;

  TokenPieces pieces_;
  std::vector<int64_t> first_windows_;  // the number of each piece's first window
  int64_t context_;
  int64_t vocabulary_;
  int64_t size_ = 0;
};

}  // namespace lockstep::recipes
