// Documents that nobody would write: each is read, and then reads the same when it is
// written as JSON, or is refused by a ConfigError that names a place.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <nlohmann/json.hpp>

#include "config/hjson.h"
#include "support/fuzz.h"

namespace lockstep::config {
namespace {

std::string json_of(const HjsonNode& node) {
  std::string result;
  switch (node.kind) {
    case HjsonNode::Kind::kNull: return "null";
    case HjsonNode::Kind::kBool: return node.truth ? "true" : "false";
    case HjsonNode::Kind::kNumber: return node.text;
    case HjsonNode::Kind::kText: return nlohmann::json(node.text).dump();
    case HjsonNode::Kind::kArray:
      for (const HjsonNode& item : node.items) result += (result.empty() ? "" : ",") + json_of(item);
      return "[" + result + "]";
    case HjsonNode::Kind::kObject:
      for (const HjsonMember& member : node.members) {
        result +=
            (result.empty() ? "" : ",") + nlohmann::json(member.key).dump() + ":" + json_of(member.value);
      }
      return "{" + result + "}";
  }
  return result;
}

bool takes(const std::string& bytes) {
  try {
    const std::string written = json_of(parse_hjson(bytes, "fuzz"));
    EXPECT_EQ(json_of(parse_hjson(written, "again")), written) << bytes;
    // What was an HJSON number is one of JSON, and no text breaks its quotes.
    EXPECT_TRUE(nlohmann::json::accept(written) || written.find('e') != std::string::npos ||
                written.find('E') != std::string::npos)
        << written;
    return true;
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::MatchesRegex("\\[config\\] fuzz:[0-9]+:[0-9]+: .*")) << bytes;
    return false;
  }
}

TEST(HjsonFuzzTest, TheCorpusIsTakenOrRefusedAsItsNamesSay) {
  for (const test::FuzzFile& file : test::fuzz_corpus("hjson")) {
    EXPECT_EQ(takes(file.bytes), !file.is_hostile()) << file.name;
  }
}

TEST(HjsonFuzzTest, MutationsAreReadOrRefused) {
  int taken = 0, refused = 0;
  test::for_each_mutation(test::fuzz_corpus("hjson"), 300, "{}[],:\"'''#///**/\\u12true null-1.5e3\n",
                          20260801, [&](const std::string& bytes) { ++(takes(bytes) ? taken : refused); });
  EXPECT_GT(taken, 500) << "too wild to reach anything";
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace lockstep::config
