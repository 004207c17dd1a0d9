#include "track/trackers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "unit/track/run_folder.h"

namespace lockstep::track {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::ThrowsMessage;

class JsonlTrackerTest : public testing::Test {
 protected:
  // The file's objects, without the time that each must have.
  std::vector<json> lines() const {
    std::vector<json> found;
    std::istringstream file(folder_.content_of("metrics.jsonl"));
    for (std::string line; std::getline(file, line);) {
      found.push_back(json::parse(line));
      EXPECT_GT(found.back().at("time").get<double>(), 1.6e9);
      found.back().erase("time");
    }
    return found;
  }
  static void write(Tracker& tracker, int64_t step, const std::vector<Scalar>& scalars) {
    tracker.write_scalars(scalars, step);
  }
  RunFolder folder_;
};

TEST_F(JsonlTrackerTest, WritesAnObjectForEachWrite) {
  const auto tracker = make_jsonl_tracker(folder_.new_run());
  write(*tracker, 1, {{"loss", 0.1}, {"acc", 2}});
  write(*tracker, 1, {{"val", -1}});
  tracker->write_text("model", "a \"quoted\"\nline", 2);
  EXPECT_EQ(lines(),
            (std::vector<json>{{{"step", 1}, {"loss", 0.1}, {"acc", 2.0}},
                               {{"step", 1}, {"val", -1.0}},
                               {{"step", 2}, {"text", "model"}, {"content", "a \"quoted\"\nline"}}}));
}

TEST_F(JsonlTrackerTest, WritesHyperparametersWithTheirTypes) {
  const auto tracker = make_jsonl_tracker(folder_.new_run());
  tracker->write_hyperparameters({{"b", true}, {"i", int64_t{3}}, {"d", 0.5}, {"s", std::string("x")}},
                                 {{"loss", std::nan("")}});
  EXPECT_EQ(lines().at(0), (json{{"hyperparameters", {{"b", true}, {"i", 3}, {"d", 0.5}, {"s", "x"}}},
                                 {"final_metrics", {{"loss", "NaN"}}}}));
}

TEST_F(JsonlTrackerTest, WritesOnlyTheBucketsThatHoldValues) {
  const auto tracker = make_jsonl_tracker(folder_.new_run());
  const std::vector<double> values = {0, 5e-13, 1};
  tracker->write_histogram("w", Histogram::of(std::span<const double>(values)), 4);
  const json line = lines().at(0);
  EXPECT_EQ(line["histogram"], "w");
  EXPECT_EQ(line["count"], 3);
  ASSERT_EQ(line["buckets"].size(), 2);
  EXPECT_EQ(line["buckets"][0], json::array({0, 1e-12, 2}));
  EXPECT_EQ(line["buckets"][1][2], 1);
}

TEST_F(JsonlTrackerTest, ValuesThatJsonLacksAreStrings) {
  const auto tracker = make_jsonl_tracker(folder_.new_run());
  const double infinity = std::numeric_limits<double>::infinity();
  write(*tracker, 1, {{"a", std::nan("")}, {"b", infinity}, {"c", -infinity}});
  EXPECT_EQ(lines().at(0), (json{{"step", 1}, {"a", "NaN"}, {"b", "Infinity"}, {"c", "-Infinity"}}));
}

TEST_F(JsonlTrackerTest, ANameThatIsNoUtf8StillMakesValidJson) {
  const auto tracker = make_jsonl_tracker(folder_.new_run());
  write(*tracker, 1, {{"caf\xe9", 1}});
  EXPECT_EQ(lines().at(0), (json{{"step", 1}, {"caf\xef\xbf\xbd", 1.0}}));
}

TEST_F(JsonlTrackerTest, RefusesTheNamesOfItsOwnKeys) {
  const auto tracker = make_jsonl_tracker(folder_.new_run());
  EXPECT_THAT([&] { write(*tracker, 1, {{"time", 1}}); }, ThrowsMessage<ConfigError>(HasSubstr("'time'")));
  EXPECT_TRUE(lines().empty());
}

TEST_F(JsonlTrackerTest, ResumingDropsWhatIsWrittenAgainAndACutLine) {
  {
    const auto tracker = make_jsonl_tracker(folder_.new_run());
    tracker->write_hyperparameters({{"lr", 0.1}}, {});
    for (int step = 1; step <= 4; ++step) write(*tracker, step, {{"loss", step * 1.0}});
  }
  folder_.put("metrics.jsonl", folder_.content_of("metrics.jsonl") + "{\"step\":2,\"lo");
  write(*make_jsonl_tracker(folder_.resumed_at(3)), 3, {{"loss", 30}});
  const std::vector<json> found = lines();
  ASSERT_EQ(found.size(), 4);
  EXPECT_TRUE(found[0].contains("hyperparameters"));
  EXPECT_EQ(found[2], (json{{"step", 2}, {"loss", 2.0}}));
  EXPECT_EQ(found[3], (json{{"step", 3}, {"loss", 30.0}}));
}

TEST_F(JsonlTrackerTest, ANewRunKeepsTheFileOfTheOneBefore) {
  write(*make_jsonl_tracker(folder_.new_run()), 1, {{"loss", 1}});
  const std::string before = folder_.content_of("metrics.jsonl");
  write(*make_jsonl_tracker(folder_.new_run()), 1, {{"loss", 2}});
  EXPECT_EQ(folder_.content_of("metrics.1.jsonl"), before);
  EXPECT_EQ(lines().size(), 1);
}

}  // namespace
}  // namespace lockstep::track
