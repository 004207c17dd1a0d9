#include "launcher/agent/hostfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/config_error.h"
#include "support/temporary_folder.h"

namespace lockstep::launcher {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

class HostfileTest : public testing::Test {
 protected:
  std::vector<HostfileNode> read(const std::string& text) const {
    std::ofstream(path_) << text;
    return read_hostfile(path_);
  }

  const test::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "hosts";
};

std::vector<std::string> shown(const std::vector<HostfileNode>& nodes) {
  std::vector<std::string> result;
  for (const HostfileNode& node : nodes) result.push_back(node.name + " " + std::to_string(node.slots));
  return result;
}

const std::vector<HostfileNode> kNodes = {{"nid1", 8}, {"nid2", 8}, {"nid3", 4}};

TEST_F(HostfileTest, HasANodeInEachLine) {
  EXPECT_THAT(shown(read("# the machines\nnid1 slots=8\n\n  nid2.lumi.eu \tslots=4 # half\r\nnid3 slots=1")),
              ElementsAre("nid1 8", "nid2.lumi.eu 4", "nid3 1"));
}

TEST_F(HostfileTest, MistakesHaveTheirLine) {
  for (const char* line :
       {"nid2", "nid2 slots", "nid2 slots=", "nid2 slots=0", "nid2 slots=-1", "nid2 slots=two",
        "nid2 slots=2 gpus=2", "slots=2", "nid2 slots = 2", "nid2 slots=99999999999"}) {
    EXPECT_THAT(error_of([&] { read(std::string("nid1 slots=8\n") + line + "\n"); }),
                HasSubstr("line 2 of the hostfile must be NAME slots=NUMBER, with 1 slot or more: '" +
                          std::string(line) + "' in '" + path_.string() + "'"))
        << line;
  }
  EXPECT_THAT(error_of([&] { read("nid1 slots=8\n\nnid1 slots=8\n"); }),
              HasSubstr("line 3 of the hostfile has the node of line 1 again, remove one: 'nid1'"));
  EXPECT_THAT(error_of([&] { read("# nothing\n"); }), HasSubstr("the hostfile has no node"));
  EXPECT_THAT(error_of([&] { read_hostfile(folder_.path() / "nowhere"); }),
              HasSubstr("--hostfile cannot be read, No such file or directory: '"));
}

TEST_F(HostfileTest, IncludeAndExcludeChooseNodes) {
  EXPECT_EQ(choose_nodes(kNodes, "", "").size(), 3u);
  EXPECT_THAT(shown(choose_nodes(kNodes, "nid3@nid1", "")), ElementsAre("nid1 8", "nid3 4"))
      << "in the file's order";
  EXPECT_THAT(shown(choose_nodes(kNodes, "", "nid2")), ElementsAre("nid1 8", "nid3 4"));
  EXPECT_THAT(error_of([] { choose_nodes(kNodes, "nid1", "nid2"); }), HasSubstr("exclude each other"));
  EXPECT_THAT(error_of([] { choose_nodes(kNodes, "nid9", ""); }),
              HasSubstr("--include names 'nid9', which is no node of the hostfile: nid1, nid2, nid3"));
  EXPECT_THAT(error_of([] { choose_nodes(kNodes, "", "nid1@nid2@nid3"); }),
              HasSubstr("--exclude leaves no node"));
  EXPECT_THAT(error_of([] { choose_nodes(kNodes, "nid1:0,2", ""); }),
              HasSubstr("CUDA_VISIBLE_DEVICES: 'nid1:0,2'"));
}

TEST_F(HostfileTest, AMachineIsFoundByItsShortNameToo) {
  EXPECT_EQ(place_among(kNodes, "nid2"), 1);
  EXPECT_EQ(place_among(kNodes, "nid3.lumi.eu"), 2);
  EXPECT_EQ(place_among({{"a.lumi.eu", 1}, {"b.lumi.eu", 1}}, "b"), 1);
  EXPECT_THAT(error_of([] {
                place_among({{"a.lumi.eu", 1}}, "a.example.org");
              }),
              HasSubstr("this machine, a.example.org, is no node of the hostfile"));
  EXPECT_THAT(error_of([] {
                place_among({{"a.lumi.eu", 1}, {"a.example.org", 1}}, "a");
              }),
              HasSubstr("may be node a.lumi.eu or a.example.org of the hostfile: give --node-rank"));
}

}  // namespace
}  // namespace lockstep::launcher
