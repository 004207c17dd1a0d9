#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::recipes {

// The pieces into which GPT-2 cuts a text before it merges bytes: contractions, words, numbers and other
// characters with the space before them, and other white space. Together they are the text.
std::vector<std::string_view> gpt2_pieces(std::string_view text);

// Finds the special tokens in a text, one after the other: of those that begin at one place the longest.
class SpecialSearch {
 public:
  using Specials = std::map<std::string, int64_t, std::less<>>;
  // Both must outlive it.
  SpecialSearch(const Specials& specials, std::string_view text);

  struct Found {
    size_t begin;
    size_t end;
    int64_t token;
  };
  // The first one from this place on, which is not before that of the last call.
  std::optional<Found> next(size_t from);
  // How often a special token was searched for: once more than it was found.
  int64_t searches() const { return searches_; }

 private:
  struct Place {
    const std::pair<const std::string, int64_t>* special;
    size_t begin;  // of the next one; npos: there is none
  };
  void search(Place& place, size_t from);

  const std::string_view text_;
  std::vector<Place> places_;
  int64_t searches_ = 0;
};

// GPT-2's tokenizer: byte-level byte-pair encoding. Immutable; threads may share it.
class BytePairTokenizer {
 public:
  // One file tokenizer.json of Hugging Face; or two files, the vocabulary (vocab.json or encoder.json) and
  // the merges (merges.txt or vocab.bpe); or a folder with either. Errors name the file. ConfigError: a
  // file cannot be read, is no such file, or describes another kind of tokenizer.
  static BytePairTokenizer read(const std::vector<std::filesystem::path>& files);

  // A special token in the text ("<|endoftext|>") becomes that token.
  std::vector<int64_t> encode(std::string_view text) const;
  // ConfigError: there is no token with this number.
  const std::string& bytes_of(int64_t token) const;
  // The highest number of a token, plus one.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  // The number of "<|endoftext|>".
  std::optional<int64_t> end_of_text() const;

 private:
  struct Merge {
    int64_t rank = 0;
    int64_t token = 0;
  };
  struct Source;

  explicit BytePairTokenizer(const Source& source);
  void encode_piece(std::string_view piece, std::vector<int64_t>& tokens) const;
  void encode_ordinary(std::string_view text, std::vector<int64_t>& tokens) const;
  const Merge* merge_of(int64_t left, int64_t right) const;

  std::vector<std::optional<std::string>> tokens_;  // the bytes of each
  std::array<int64_t, 256> byte_tokens_{};
  std::unordered_map<uint64_t, Merge> merges_;  // by the numbers of both tokens
  SpecialSearch::Specials special_;
};

}  // namespace lockstep::recipes
