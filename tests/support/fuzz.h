#pragma once

// Hostile and honest bytes: the files of tests/fuzz/NAME, and seeded mutations of them.
// A file named hostile_... is one that the code under test does not take.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::test {

struct FuzzFile {
  std::string name;
  std::string bytes;

  bool is_hostile() const { return name.starts_with("hostile_"); }
};

// In the order of their names.
inline std::vector<FuzzFile> fuzz_corpus(const std::string& name) {
  const char* root = std::getenv("LOCKSTEP_SOURCE_DIR");
  if (root == nullptr) throw std::runtime_error("LOCKSTEP_SOURCE_DIR is not set: run through ctest");
  std::vector<FuzzFile> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(root) / "tests/fuzz" / name)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files.push_back({entry.path().filename().string(),
                     std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>())});
  }
  std::sort(files.begin(), files.end(), [](const FuzzFile& a, const FuzzFile& b) { return a.name < b.name; });
  if (files.empty()) throw std::runtime_error("no files in tests/fuzz/" + name);
  return files;
}

// Up to five changes; spice: text that is put in somewhere.
inline std::string mutate(std::string bytes, const std::vector<FuzzFile>& all, std::string_view spice,
                          std::mt19937_64& random) {
  const auto pick = [&](size_t size) { return std::uniform_int_distribution<size_t>(0, size)(random); };
  const size_t changes = 1 + pick(4);
  for (size_t i = 0; i < changes && !bytes.empty(); ++i) {
    const size_t place = pick(bytes.size() - 1);
    switch (pick(6)) {
      case 0: bytes[place] = static_cast<char>(pick(255)); break;
      case 1: bytes[place] = static_cast<char>(bytes[place] ^ (1 << pick(7))); break;
      case 2: bytes.erase(place, 1 + pick(20)); break;
      case 3: bytes.insert(place, 1 + pick(20), static_cast<char>(pick(255))); break;
      case 4: bytes.insert(place, spice.substr(pick(spice.size() - 1), 1 + pick(8))); break;
      case 5: bytes.resize(place); break;
      default: {
        const std::string& other = all[pick(all.size() - 1)].bytes;
        if (!other.empty()) bytes.insert(place, other.substr(pick(other.size() - 1), pick(100)));
      }
    }
  }
  return bytes;
}

// Calls with so many mutations of each file.
template <typename Call>
void for_each_mutation(const std::vector<FuzzFile>& files, int per_file, std::string_view spice,
                       uint64_t seed, Call call) {
  std::mt19937_64 random(seed);
  for (const FuzzFile& file : files) {
    for (int i = 0; i < per_file; ++i) call(mutate(file.bytes, files, spice, random));
  }
}

}  // namespace lockstep::test
