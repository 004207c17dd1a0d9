// Hostile bytes: every file of tests/fuzz/pickle, and seeded mutations of them, as a
// pickle and inside a file. The result is tensors or an error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "checkpoint/pickle.h"
#include "support/fuzz/torch/pickle.h"
#include "support/fuzz/torch/torch_file.h"
#include "support/golden.h"

namespace lockstep::checkpoint {
namespace {

using Corpus = std::map<std::string, std::string>;

Corpus read_folder(const std::string& relative, const std::string& suffix) {
  Corpus corpus;
  for (const auto& entry : std::filesystem::directory_iterator(test::data_path(relative))) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(suffix)) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    corpus[name] = std::string((std::istreambuf_iterator<char>(file)), {});
  }
  return corpus;
}

std::string mutate(std::string bytes, const std::string& other, std::mt19937_64& random) {
  const auto pick = [&](size_t size) { return std::uniform_int_distribution<size_t>(0, size)(random); };
  const bool mild = pick(1) == 0;  // most of the content keeps its meaning
  const size_t changes = mild ? 1 : 1 + pick(4);
  for (size_t i = 0; i < changes && !bytes.empty(); ++i) {
    const size_t place = pick(bytes.size() - 1);
    switch (pick(mild ? 1 : 6)) {
      case 0: bytes[place] = static_cast<char>(pick(255)); break;
      case 1: bytes[place] = static_cast<char>(bytes[place] ^ (1 << pick(7))); break;
      case 2: bytes.erase(place, 1 + pick(20)); break;
      case 3: bytes.insert(place, 1 + pick(20), static_cast<char>(pick(255))); break;
      case 4: bytes.insert(place, "(]})2\x85\x94.tRQb"); break;
      case 5: bytes.resize(place); break;
      default:
        if (!other.empty()) bytes.insert(place, other.substr(pick(other.size() - 1), pick(100)));
    }
  }
  return bytes;
}

// Calls `use` with mutations of about this size in all, so that large files are not
// mutated more than small ones.
template <typename Use>
void for_mutations(const Corpus& corpus, size_t bytes_in_all, uint64_t seed, Use use) {
  std::mt19937_64 random(seed);
  std::vector<const std::string*> all;
  for (const auto& entry : corpus) all.push_back(&entry.second);
  for (const std::string* bytes : all) {
    const size_t times = bytes_in_all / all.size() / (bytes->size() + 500);
    for (size_t i = 0; i < times; ++i) {
      use(mutate(*bytes, *all[std::uniform_int_distribution<size_t>(0, all.size() - 1)(random)], random));
    }
  }
}

TEST(PickleFuzzTest, HonestFilesAreUnderstoodAndHostileOnesAreErrors) {
  const Corpus corpus = read_folder("fuzz/pickle", "");
  ASSERT_GE(corpus.size(), 30U);
  for (const auto& [name, bytes] : corpus) {
    if (name.starts_with("hostile_") || name == "whole_module") {
      EXPECT_FALSE(fuzz::takes_pickle(bytes)) << name;
    } else {
      EXPECT_NO_THROW(parse_pickle(bytes)) << name;
    }
  }
}

TEST(PickleFuzzTest, MutatedPicklesNeverDoMoreThanThrow) {
  size_t understood = 0;
  for_mutations(read_folder("fuzz/pickle", ""), size_t{32} << 20, 20260201,
                [&](const std::string& bytes) { understood += fuzz::takes_pickle(bytes) ? 1 : 0; });
  EXPECT_GT(understood, 100U) << "some reach the tensors";
}

TEST(PickleFuzzTest, MutatedFilesNeverDoMoreThanThrow) {
  size_t understood = 0;
  for_mutations(read_folder("unit/checkpoint/golden", ".pt"), size_t{4} << 20, 20260202,
                [&](const std::string& bytes) { understood += fuzz::takes_torch_file(bytes) ? 1 : 0; });
  EXPECT_GT(understood, 10U) << "some changes are in the values";
}

}  // namespace
}  // namespace lockstep::checkpoint
