// Hostile bytes: every file of tests/fuzz/rendezvous, and seeded mutations of them.
// Whatever comes, the parser returns messages or throws ProtocolError.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "launch/rendezvous/frame.h"
#include "launch/rendezvous/message.h"

namespace lockstep::launcher {
namespace {

constexpr int kMutationsPerFile = 2000;

std::vector<std::string> corpus() {
  const char* root = std::getenv("LOCKSTEP_SOURCE_DIR");
  if (root == nullptr) throw std::runtime_error("LOCKSTEP_SOURCE_DIR is not set: run through ctest");
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(root) / "tests/fuzz/rendezvous")) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> contents;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    contents.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return contents;
}

// The number of messages in a stream, cut into pieces like a network does. What was
// taken can be said again.
int parse_stream(const std::string& bytes, std::mt19937_64& random) {
  FrameReader reader(kMaxMemberBytes);
  int messages = 0;
  try {
    for (size_t i = 0; i < bytes.size();) {
      const size_t size = std::uniform_int_distribution<size_t>(1, 200)(random);
      reader.feed(std::string_view(bytes).substr(i, size));
      i += size;
      while (const auto body = reader.next()) {
        const wire::Message message = wire::decode(*body);
        EXPECT_EQ(wire::decode(wire::encode(message).substr(kFrameHeaderBytes)).index(), message.index());
        ++messages;
      }
    }
  } catch (const ProtocolError&) {
  }
  return messages;
}

std::string mutate(std::string bytes, const std::vector<std::string>& all, std::mt19937_64& random) {
  const auto pick = [&](size_t size) { return std::uniform_int_distribution<size_t>(0, size)(random); };
  const size_t changes = 1 + pick(4);
  for (size_t i = 0; i < changes && !bytes.empty(); ++i) {
    const size_t place = pick(bytes.size() - 1);
    switch (pick(6)) {
      case 0: bytes[place] = static_cast<char>(pick(255)); break;
      case 1: bytes[place] = static_cast<char>(bytes[place] ^ (1 << pick(7))); break;
      case 2: bytes.erase(place, 1 + pick(20)); break;
      case 3: bytes.insert(place, 1 + pick(20), static_cast<char>(pick(255))); break;
      case 4: bytes.insert(place, "[{\"0123456789-+.eE\\u0000"); break;
      case 5: bytes.resize(place); break;
      default: {
        const std::string& other = all[pick(all.size() - 1)];
        if (!other.empty()) bytes.insert(place, other.substr(pick(other.size() - 1), pick(100)));
      }
    }
  }
  return bytes;
}

TEST(WireFuzzTest, TheCorpusIsUnderstood) {
  std::mt19937_64 random(1);
  int messages = 0;
  for (const std::string& bytes : corpus()) messages += parse_stream(bytes, random);
  EXPECT_GE(messages, 20) << "one of each kind at least";
}

TEST(WireFuzzTest, MutationsNeverDoMoreThanThrow) {
  const std::vector<std::string> files = corpus();
  ASSERT_FALSE(files.empty());
  std::mt19937_64 random(20260101);
  for (const std::string& bytes : files) {
    for (int i = 0; i < kMutationsPerFile; ++i) parse_stream(mutate(bytes, files, random), random);
  }
}

// The header is right, so that the mutations reach the fields.
TEST(WireFuzzTest, MutatedBodiesNeverDoMoreThanThrow) {
  const std::vector<std::string> files = corpus();
  std::mt19937_64 random(20260102);
  for (const std::string& bytes : files) {
    if (bytes.size() <= kFrameHeaderBytes) continue;
    const std::string body = bytes.substr(kFrameHeaderBytes);
    for (int i = 0; i < kMutationsPerFile; ++i)
      parse_stream(encode_frame(mutate(body, files, random)), random);
  }
}

}  // namespace
}  // namespace lockstep::launcher
