// Hostile bytes: every file of tests/fuzz/rendezvous, and seeded mutations of them.
// Whatever comes, the parser returns messages or throws ProtocolError.

#include <gtest/gtest.h>

#include <random>

#include "launch/rendezvous/frame.h"
#include "launch/rendezvous/message.h"
#include "support/fuzz.h"

namespace lockstep::launcher {
namespace {

constexpr int kMutationsPerFile = 2000;
constexpr std::string_view kSpice = "[{\"0123456789-+.eE\\u0000";

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

TEST(WireFuzzTest, TheCorpusIsUnderstood) {
  std::mt19937_64 random(1);
  int messages = 0;
  for (const test::FuzzFile& file : test::fuzz_corpus("rendezvous"))
    messages += parse_stream(file.bytes, random);
  EXPECT_GE(messages, 20) << "one of each kind at least";
}

TEST(WireFuzzTest, MutationsNeverDoMoreThanThrow) {
  std::mt19937_64 random(1);
  test::for_each_mutation(test::fuzz_corpus("rendezvous"), kMutationsPerFile, kSpice, 20260101,
                          [&](const std::string& bytes) { parse_stream(bytes, random); });
}

// The header is right, so that the mutations reach the fields.
TEST(WireFuzzTest, MutatedBodiesNeverDoMoreThanThrow) {
  std::mt19937_64 random(1);
  std::vector<test::FuzzFile> bodies = test::fuzz_corpus("rendezvous");
  for (test::FuzzFile& file : bodies) file.bytes.erase(0, kFrameHeaderBytes);
  test::for_each_mutation(bodies, kMutationsPerFile, kSpice, 20260102,
                          [&](const std::string& body) { parse_stream(encode_frame(body), random); });
}

}  // namespace
}  // namespace lockstep::launcher
