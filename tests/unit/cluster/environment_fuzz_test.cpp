// Node lists, counts and whole environments that nobody's launcher would set: each is
// understood or refused by a ConfigError.

#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "cluster/allocation_check.h"
#include "cluster/node_list.h"
#include "cluster/placement.h"
#include "support/fuzz.h"

namespace lockstep::cluster {
namespace {

using test::FuzzFile;

std::string first_line(const std::string& bytes) { return bytes.substr(0, bytes.find('\n')); }

// Whether it is a list; what is taken makes sense.
bool takes_node_list(const std::string& text) {
  try {
    const std::vector<std::string> hosts = expand_node_list(text, "LIST");
    EXPECT_FALSE(hosts.empty()) << text;
    EXPECT_LE(hosts.size(), static_cast<size_t>(kMaxHosts));
    for (const std::string& host : hosts) {
      EXPECT_FALSE(host.empty()) << text;
      EXPECT_EQ(host.find_first_of("[],"), std::string::npos) << text;
    }
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

bool takes_counts(const std::string& text) {
  try {
    const std::vector<int> counts = expand_counts(text, "COUNTS");
    EXPECT_FALSE(counts.empty()) << text;
    EXPECT_LE(counts.size(), static_cast<size_t>(kMaxHosts));
    EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](int count) { return count >= 1; })) << text;
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

base::Environment parse_environment(const std::string& text) {
  base::Environment environment;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos && equals > 0) {
      environment.set(line.substr(0, equals), line.substr(equals + 1));
    }
  }
  return environment;
}

bool takes_environment(const std::string& text) {
  const base::Environment environment = parse_environment(text);
  try {
    const Placement placement = decide_placement({}, environment, "n1");
    EXPECT_FALSE(placement.spawn) << "nobody asked for more ranks: " << text;
    const RankMap& map = placement.map;
    EXPECT_TRUE(0 <= map.rank && map.rank < map.world_size) << text;
    EXPECT_TRUE(0 <= map.local_rank && map.local_rank < map.local_world_size) << text;
    EXPECT_LE(map.local_world_size, map.world_size) << text;
    const bool node_is_told = map.num_nodes > 0;
    EXPECT_TRUE(node_is_told ? 0 <= map.node_rank && map.node_rank < map.num_nodes : map.node_rank == -1)
        << text;
    EXPECT_TRUE(map.world_size == 1 || map.rendezvous.kind != Rendezvous::Kind::kNone) << text;
    check_allocation(map, environment, {.wants_gpu = true, .visible_gpus = 1});
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

struct FuzzCase {
  const char* corpus;
  bool (*takes)(const std::string& text);
  const char* spice;
  bool is_line;
};

void PrintTo(const FuzzCase& value, std::ostream* out) { *out << value.corpus; }

class EnvironmentFuzzTest : public testing::TestWithParam<FuzzCase> {
 protected:
  bool takes(const std::string& bytes) const {
    return GetParam().takes(GetParam().is_line ? first_line(bytes) : bytes);
  }
};

TEST_P(EnvironmentFuzzTest, TheCorpusIsTakenOrRefusedAsItsNamesSay) {
  for (const FuzzFile& file : test::fuzz_corpus(GetParam().corpus)) {
    EXPECT_EQ(takes(file.bytes), !file.is_hostile()) << file.name;
  }
}

TEST_P(EnvironmentFuzzTest, MutationsAreUnderstoodOrRefused) {
  int taken = 0, refused = 0;
  test::for_each_mutation(test::fuzz_corpus(GetParam().corpus), 300, GetParam().spice, 20260103,
                          [&](const std::string& bytes) { ++(takes(bytes) ? taken : refused); });
  EXPECT_GT(taken, 0) << "too wild to reach anything";
  EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Corpus, EnvironmentFuzzTest,
                         testing::Values(FuzzCase{"node_list", takes_node_list, "[0-9],n10[1-2]x", true},
                                         FuzzCase{"counts", takes_counts, "(x2),1(x10)", true},
                                         FuzzCase{"environment", takes_environment,
                                                  "=0\n=1\nRANK=1\nSLURM_NODEID=1\nWORLD_SIZE=2\n", false}),
                         [](const auto& info) { return std::string(info.param.corpus); });

}  // namespace
}  // namespace lockstep::cluster
