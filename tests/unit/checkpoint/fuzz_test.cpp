// Hostile bytes: every file of tests/fuzz/manifest and tests/fuzz/safetensors, and seeded
// mutations of them. Each is read or is a CheckpointError.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>

#include "base/safetensors.h"
#include "checkpoint/dtype.h"
#include "checkpoint/error.h"
#include "support/fuzz/torch/manifest.h"
#include "support/fuzz/torch/safetensors.h"
#include "unit/checkpoint/folder.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kMutationsPerFile = 1500;
constexpr size_t kLengthSize = 8;

std::vector<std::string> corpus(const std::string& name) {
  const char* root = std::getenv("LOCKSTEP_SOURCE_DIR");
  if (root == nullptr) throw std::runtime_error("LOCKSTEP_SOURCE_DIR is not set: run through ctest");
  const std::filesystem::path folder = std::filesystem::path(root) / "tests/fuzz" / name;
  std::vector<std::string> contents;
  for (const std::string& file : names_in(folder)) contents.push_back(read_text(folder / file));
  return contents;
}

std::string mutate(std::string bytes, const std::vector<std::string>& all, std::mt19937_64& random) {
  const auto pick = [&](size_t size) { return std::uniform_int_distribution<size_t>(0, size)(random); };
  static const char* const kNumbers[] = {"0",     "-1", "9223372036854775807", "18446744073709551616",
                                         "1e400", "4.5"};
  const size_t changes = 1 + pick(4);
  for (size_t i = 0; i < changes && !bytes.empty(); ++i) {
    const size_t place = pick(bytes.size() - 1);
    switch (pick(6)) {
      case 0: bytes[place] = static_cast<char>(pick(255)); break;
      case 1: bytes[place] = static_cast<char>(bytes[place] ^ (1 << pick(7))); break;
      case 2: bytes.erase(place, 1 + pick(20)); break;
      case 3: bytes.insert(place, 1 + pick(20), static_cast<char>(pick(255))); break;
      case 4: {  // another number where one is
        const size_t digit = bytes.find_first_of("0123456789", place);
        if (digit != std::string::npos) bytes.replace(digit, 1, kNumbers[pick(std::size(kNumbers) - 1)]);
        break;
      }
      case 5: bytes.resize(place); break;
      default: {
        const std::string& other = all[pick(all.size() - 1)];
        if (!other.empty()) bytes.insert(place, other.substr(pick(other.size() - 1), pick(100)));
      }
    }
  }
  return bytes;
}

TEST(ManifestFuzzTest, TheCorpusIsUnderstood) {
  int honest = 0;
  for (const std::string& rest : corpus("manifest")) honest += fuzz::takes_manifest(rest) ? 1 : 0;
  EXPECT_EQ(honest, 3);
  EXPECT_GT(corpus("manifest").size(), 8U);
}

// With the checksum in the manifest, so that the content is parsed.
TEST(ManifestFuzzTest, MutatedIndexFilesNeverDoMoreThanThrow) {
  Manifest whole;
  whole.files = {{.name = "shard", .bytes = 1000, .header_checksum = std::string(kChecksumDigits, '0')}};
  for (int64_t i = 0; i < 3; ++i) {
    const std::string sum(kChecksumDigits, 'a');
    whole.tensors["tensor " + std::to_string(i)] = {
        .dtype = at::kFloat,
        .shape = {2, 5},
        .pieces = {{.file = 0, .offset = 100 * i, .first = 0, .count = 6, .checksum = sum},
                   {.file = 0, .offset = 100 * i + 24, .first = 6, .count = 4, .checksum = sum}}};
  }
  Manifest indexed = whole;
  const std::vector<std::string> texts = indexed.split_off_pieces(4);
  ASSERT_EQ(texts.size(), 2U);
  std::mt19937_64 random(20260204);
  int taken = 0;
  for (size_t index = 0; index < texts.size(); ++index) {
    Manifest honest = indexed;
    honest.read_index(index, texts[index], "index");
    EXPECT_EQ(honest.tensors.at("tensor 0").pieces.size(), index == 0 ? 2U : 0U);
    for (int i = 0; i < kMutationsPerFile; ++i) {
      const std::string text = mutate(texts[index], texts, random);
      Manifest manifest = indexed;
      manifest.indices[index].checksum = checksum_of(text);
      try {
        manifest.read_index(index, text, "index");
        for (const auto& [name, tensor] : manifest.tensors) {
          for (const Piece& piece : tensor.pieces) EXPECT_LE(piece.offset + 4 * piece.count, 1000) << name;
        }
        ++taken;
      } catch (const CheckpointError&) {
      }
    }
  }
  EXPECT_GT(taken, 0);
}

TEST(ManifestFuzzTest, MutationsNeverDoMoreThanThrow) {
  const std::vector<std::string> files = corpus("manifest");
  std::mt19937_64 random(20260201);
  for (const std::string& rest : files) {
    for (int i = 0; i < kMutationsPerFile; ++i) {
      fuzz::takes_manifest(mutate(rest, files, random));
      EXPECT_FALSE(fuzz::takes_manifest_text(mutate(fuzz::with_checksum(rest), files, random) + "x"));
    }
  }
}

TEST(SafetensorsFuzzTest, TheCorpusIsUnderstood) {
  int honest = 0;
  for (const std::string& bytes : corpus("safetensors")) honest += fuzz::takes_safetensors(bytes) ? 1 : 0;
  EXPECT_EQ(honest, 2);
  EXPECT_GT(corpus("safetensors").size(), 8U);
}

TEST(SafetensorsFuzzTest, MutationsNeverDoMoreThanThrow) {
  const std::vector<std::string> files = corpus("safetensors");
  std::mt19937_64 random(20260202);
  for (const std::string& bytes : files) {
    for (int i = 0; i < kMutationsPerFile; ++i) fuzz::takes_safetensors(mutate(bytes, files, random));
  }
}

// The length is right, so that the mutated header is parsed.
TEST(SafetensorsFuzzTest, MutatedHeadersNeverDoMoreThanThrow) {
  const std::vector<std::string> files = corpus("safetensors");
  std::mt19937_64 random(20260203);
  int parsed = 0;
  for (const std::string& bytes : files) {
    const size_t end = bytes.rfind('}');
    if (bytes.size() <= kLengthSize || end == std::string::npos || end < kLengthSize) continue;
    const std::string header = bytes.substr(kLengthSize, end + 1 - kLengthSize);
    const auto data_bytes = static_cast<int64_t>(bytes.size() - end - 1);
    for (int i = 0; i < kMutationsPerFile; ++i) {
      const std::string changed = mutate(header, files, random);
      const auto file_bytes = static_cast<int64_t>(kLengthSize + changed.size()) + data_bytes;
      try {
        const base::SafetensorsText result =
            base::parse_safetensors(changed, file_bytes, "file", fail_broken);
        for (const base::SafetensorsEntry& tensor : result.tensors) {
          EXPECT_LE(result.bytes + tensor.end, file_bytes);
          EXPECT_TRUE(safetensors_dtype(tensor.dtype)) << tensor.dtype;
        }
        ++parsed;
      } catch (const CheckpointError&) {
      }
    }
  }
  EXPECT_GT(parsed, 0);
}

}  // namespace
}  // namespace lockstep::checkpoint
