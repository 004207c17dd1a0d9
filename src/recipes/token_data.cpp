#include "recipes/token_data.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "recipes/byte_pair_tokenizer.h"

namespace lockstep::recipes {
namespace {

// llm.c's files begin with 256 int32: this number, the version, the number of tokens.
constexpr int32_t kTokenMagic = 20240520;
constexpr int32_t kTokenVersion = 1;  // uint16
constexpr int64_t kTokenHeaderBytes = 256 * sizeof(int32_t);
// The files of Llama 3's tokens, of 32 bits.
constexpr int32_t kWideTokenMagic = 20240801;
constexpr int64_t kSyntheticTokens = int64_t{1} << 18;

[[noreturn]] void refuse_tokens(const std::filesystem::path& file, const std::string& reason) {
  throw ConfigError("train", fmt::format("{}: '{}'", reason, file.string()));
}

int64_t bytes_of_file(const std::filesystem::path& file) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(file, error);
  if (error) refuse_tokens(file, fmt::format("cannot read the file of tokens, {}", error.message()));
  return static_cast<int64_t>(bytes);
}

TokenSplit split_tokens(const TokenPiece& whole, double train_fraction) {
  const int64_t tokens = whole.tokens.numel();
  const int64_t train = std::llround(static_cast<double>(tokens) * train_fraction);
  TokenSplit split;
  split.train.push_back({whole.name, whole.tokens.narrow(0, 0, train)});
  if (train < tokens) split.validation.push_back({whole.name, whole.tokens.narrow(0, train, tokens - train)});
  return split;
}

int64_t token_at(const at::Tensor& tokens, int64_t place) {
  if (tokens.scalar_type() == at::kByte) return tokens.const_data_ptr<uint8_t>()[place];
  return static_cast<uint16_t>(tokens.const_data_ptr<int16_t>()[place]);
}

}  // namespace

TokenPiece open_token_file(const std::filesystem::path& file) {
  const int64_t bytes = bytes_of_file(file);
  std::array<int32_t, 3> begin{};
  std::ifstream stream(file, std::ios::binary);
  if (!stream.is_open()) refuse_tokens(file, "cannot read the file of tokens");
  stream.read(reinterpret_cast<char*>(begin.data()), sizeof(begin));
  int64_t skipped = 0;
  if (stream.gcount() == sizeof(begin) && begin[0] == kTokenMagic) {
    if (begin[1] != kTokenVersion) {
      refuse_tokens(file, fmt::format("a file of llm.c in version {}, and version {} is read", begin[1],
                                      kTokenVersion));
    }
    skipped = kTokenHeaderBytes;
    const int64_t expected = kTokenHeaderBytes + 2 * int64_t{begin[2]};
    if (bytes != expected) {
      refuse_tokens(file, fmt::format("the header says {} tokens, {} bytes in all, and the file has {}",
                                      begin[2], expected, bytes));
    }
  } else if (stream.gcount() == sizeof(begin) && begin[0] == kWideTokenMagic) {
    refuse_tokens(file, "a file with tokens of 32 bits, and tokens of 16 bits are read");
  }
  if (bytes % 2 != 0)
    refuse_tokens(file, fmt::format("tokens have two bytes each, and the file has {}", bytes));
  if (bytes == skipped) refuse_tokens(file, "the file has no tokens");
  const at::Tensor all = torch::from_file(file.string(), /*shared=*/false, bytes / 2, at::kShort);
  return {file.string(), all.narrow(0, skipped / 2, (bytes - skipped) / 2)};
}

TokenSplit open_tokens(const std::filesystem::path& path, double train_fraction) {
  if (!std::filesystem::is_directory(path)) return split_tokens(open_token_file(path), train_fraction);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().extension() == ".bin") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  TokenSplit split;
  for (const std::filesystem::path& file : files) {
    const std::string name = file.filename().string();
    if (name.find("train") != std::string::npos) {
      split.train.push_back(open_token_file(file));
    } else if (name.find("val") != std::string::npos) {
      split.validation.push_back(open_token_file(file));
    }
  }
  if (split.train.empty()) refuse_tokens(path, "no file *.bin with 'train' in its name");
  return split;
}

TokenSplit read_text_tokens(const std::filesystem::path& file, const BytePairTokenizer* tokenizer,
                            double train_fraction) {
  std::ifstream stream(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream.is_open() || stream.bad()) refuse_tokens(file, "cannot read the text");
  if (text.empty()) refuse_tokens(file, "the text is empty");
  at::Tensor tokens;
  if (tokenizer == nullptr) {
    tokens = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
    std::memcpy(tokens.mutable_data_ptr(), text.data(), text.size());
  } else {
    if (tokenizer->size() > 0x10000) {
      throw ConfigError("train", fmt::format("tokens of 16 bits are trained on, and the tokenizer has {}",
                                             tokenizer->size()));
    }
    tokens = torch::tensor(tokenizer->encode(text), at::kLong).to(at::kShort);
  }
  return split_tokens({file.string(), tokens}, train_fraction);
}

TokenSplit synthetic_tokens(int64_t vocabulary, double train_fraction) {
  const auto kinds = static_cast<uint32_t>(std::min<int64_t>(vocabulary, 256));
  const at::Tensor tokens = at::empty({kSyntheticTokens}, at::kByte);
  uint8_t* const values = tokens.mutable_data_ptr<uint8_t>();
  uint32_t random = 1;
  uint32_t token = 0;
  for (int64_t i = 0; i < kSyntheticTokens; ++i) {
    random = random * 1664525U + 1013904223U;
    const uint32_t draw = random >> 24;  // 0 to 255
    const uint32_t choice = draw < 160 ? 0 : draw < 208 ? 1 : draw < 240 ? 2 : 3;
    token = (token * 5 + choice * 61 + 17) % kinds;
    values[i] = static_cast<uint8_t>(token);
  }
  return split_tokens({"synthetic data", tokens}, train_fraction);
}

TokenWindows::TokenWindows(TokenPieces pieces, int64_t context, int64_t vocabulary)
    : pieces_(std::move(pieces)), context_(context), vocabulary_(vocabulary) {
  for (const TokenPiece& piece : pieces_) {
    first_windows_.push_back(size_);
    size_ += std::max<int64_t>(0, piece.tokens.numel() - 1) / context_;
  }
}

void TokenWindows::copy_window(int64_t index, int64_t* inputs, int64_t* targets) const {
  const auto after = std::upper_bound(first_windows_.begin(), first_windows_.end(), index);
  const auto number = static_cast<size_t>(after - first_windows_.begin()) - 1;
  const TokenPiece& piece = pieces_[number];
  const int64_t first = (index - first_windows_[number]) * context_;
  int64_t highest = 0;
  for (int64_t i = 0; i <= context_; ++i) {
    const int64_t token = token_at(piece.tokens, first + i);
    highest = std::max(highest, token);
    if (i < context_) inputs[i] = token;
    if (i > 0) targets[i - 1] = token;
  }
  if (highest < vocabulary_) return;
  throw ConfigError("train", fmt::format("the model has a vocabulary of {}, and '{}' has the token {} behind "
                                         "place {}: give a larger --vocabulary",
                                         vocabulary_, piece.name, highest, first));
}

Example TokenWindows::get(int64_t index, uint64_t /*seed*/) const {
  Example example = {at::empty({context_}, at::kLong), at::empty({context_}, at::kLong)};
  copy_window(index, example[0].mutable_data_ptr<int64_t>(), example[1].mutable_data_ptr<int64_t>());
  return example;
}

Batch TokenWindows::get_batch(std::span<const int64_t> indices, const SampleSeeds& /*seeds*/) const {
  const auto samples = static_cast<int64_t>(indices.size());
  Batch batch;
  batch.tensors = {at::empty({samples, context_}, at::kLong), at::empty({samples, context_}, at::kLong)};
  auto* const inputs = batch.tensors[0].mutable_data_ptr<int64_t>();
  auto* const targets = batch.tensors[1].mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < samples; ++i) {
    copy_window(indices[static_cast<size_t>(i)], inputs + i * context_, targets + i * context_);
  }
  return batch;
}

}  // namespace lockstep::recipes
