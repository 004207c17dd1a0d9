#include "track/trackers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <cmath>
#include <limits>

#include "unit/track/file_size_limit.h"
#include "unit/track/run_folder.h"

namespace lockstep::track {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing::UnorderedElementsAre;

void write(Tracker& tracker, int64_t step, std::initializer_list<Scalar> scalars) {
  tracker.write_scalars(std::span(scalars.begin(), scalars.size()), step);
}

class CsvTrackerTest : public testing::Test {
 protected:
  std::string file() const { return folder_.content_of("metrics.csv"); }
  RunFolder folder_;
};

TEST_F(CsvTrackerTest, WritesARowForEachStepAtOnce) {
  const auto tracker = make_csv_tracker(folder_.new_run());
  write(*tracker, 1, {{"loss", 0.1}, {"acc", 3}});
  EXPECT_EQ(file(), "step,loss,acc\n1,0.1,3\n");
  write(*tracker, 2, {{"acc", 4}, {"loss", 1e-300}});
  EXPECT_EQ(file(), "step,loss,acc\n1,0.1,3\n2,1e-300,4\n");
}

TEST_F(CsvTrackerTest, WritesOfOneStepShareItsRow) {
  const auto tracker = make_csv_tracker(folder_.new_run());
  write(*tracker, 1, {{"loss", 1}, {"val", 2}});
  write(*tracker, 2, {{"loss", 3}});
  write(*tracker, 2, {{"val", 4}});
  write(*tracker, 2, {{"loss", 5.5}});
  EXPECT_EQ(file(), "step,loss,val\n1,1,2\n2,5.5,4\n");
}

TEST_F(CsvTrackerTest, ANewMetricAddsAColumn) {
  const auto tracker = make_csv_tracker(folder_.new_run());
  write(*tracker, 1, {{"a", 1}});
  write(*tracker, 2, {{"a", 2}});
  write(*tracker, 2, {{"b", 3}, {"c", 4}});
  write(*tracker, 3, {{"c", 5}});
  EXPECT_EQ(file(), "step,a,b,c\n1,1,,\n2,2,3,4\n3,,,5\n");
  EXPECT_THAT(folder_.names(), UnorderedElementsAre("metrics.csv"));
}

TEST_F(CsvTrackerTest, KeepsEveryBitAndValuesThatAreNoNumbers) {
  const auto tracker = make_csv_tracker(folder_.new_run());
  const double infinity = std::numeric_limits<double>::infinity();
  write(*tracker, 1, {{"a", 0.1 + 0.2}, {"b", std::nan("")}, {"c", infinity}, {"d", -infinity}});
  EXPECT_EQ(file(), "step,a,b,c,d\n1,0.30000000000000004,nan,inf,-inf\n");
}

TEST_F(CsvTrackerTest, QuotesNamesAndReadsThemAgain) {
  make_csv_tracker(folder_.new_run())->write_scalars(std::vector<Scalar>{{"a,b", 1}, {"say \"x\"", 2}}, 1);
  EXPECT_EQ(file(), "step,\"a,b\",\"say \"\"x\"\"\"\n1,1,2\n");
  write(*make_csv_tracker(folder_.resumed_at(2)), 2, {{"say \"x\"", 3}, {"a,b", 4}});
  EXPECT_EQ(file(), "step,\"a,b\",\"say \"\"x\"\"\"\n1,1,2\n2,4,3\n");
}

TEST_F(CsvTrackerTest, RefusesNamesThatBreakTheTable) {
  const auto tracker = make_csv_tracker(folder_.new_run());
  for (const char* name : {"step", "", "two\nlines"}) {
    EXPECT_THAT(
        [&] {
          write(*tracker, 1, {{name, 1}});
        },
        ThrowsMessage<ConfigError>(HasSubstr("another name")));
  }
  EXPECT_EQ(file(), "step\n");
}

TEST_F(CsvTrackerTest, ResumingDropsWhatIsWrittenAgain) {
  {
    const auto tracker = make_csv_tracker(folder_.new_run());
    for (int step = 1; step <= 4; ++step) write(*tracker, step, {{"loss", step * 1.0}});
  }
  const auto tracker = make_csv_tracker(folder_.resumed_at(3));
  EXPECT_EQ(file(), "step,loss\n1,1\n2,2\n");
  write(*tracker, 3, {{"loss", 30}, {"new", 1}});
  EXPECT_EQ(file(), "step,loss,new\n1,1,\n2,2,\n3,30,1\n");
}

TEST_F(CsvTrackerTest, ResumingDropsALineThatWasCut) {
  folder_.put("metrics.csv", "step,loss\n1,1\n2,0.12");
  const auto tracker = make_csv_tracker(folder_.resumed_at(3));
  EXPECT_EQ(file(), "step,loss\n1,1\n");
}

TEST_F(CsvTrackerTest, ResumingWithoutAFileStartsOne) {
  write(*make_csv_tracker(folder_.resumed_at(3)), 3, {{"loss", 1}});
  EXPECT_EQ(file(), "step,loss\n3,1\n");
}

TEST_F(CsvTrackerTest, AForeignFileIsSetAside) {
  for (const char* content : {"epoch,loss\n1,2\n", "step,loss\n1,2\nsee notes,3\n", "no line"}) {
    folder_.put("metrics.csv", content);
    write(*make_csv_tracker(folder_.resumed_at(3)), 3, {{"loss", 1}});
    EXPECT_EQ(file(), "step,loss\n3,1\n");
    EXPECT_EQ(folder_.content_of("metrics.1.csv"), content);
    std::filesystem::remove(folder_.path() / "metrics.1.csv");
  }
}

TEST_F(CsvTrackerTest, ANewRunKeepsTheFileOfTheOneBefore) {
  write(*make_csv_tracker(folder_.new_run()), 1, {{"loss", 1}});
  write(*make_csv_tracker(folder_.new_run()), 1, {{"loss", 2}});
  EXPECT_EQ(file(), "step,loss\n1,2\n");
  EXPECT_EQ(folder_.content_of("metrics.1.csv"), "step,loss\n1,1\n");
}

TEST_F(CsvTrackerTest, AFullDiskLosesTheRowAndNothingElse) {
  const auto tracker = make_csv_tracker(folder_.new_run());
  write(*tracker, 1, {{"a", 1}, {"b", 2}});
  write(*tracker, 2, {{"a", 3}});
  const std::string before = file();
  {
    const FileSizeLimit limit(before.size());
    EXPECT_THROW(write(*tracker, 2, {{"b", 4}}), ConfigError);
    EXPECT_EQ(file(), before);
    EXPECT_THROW(write(*tracker, 2, {{"c", 4}}), ConfigError);  // would rewrite the file
    EXPECT_EQ(file(), before);
  }
  write(*tracker, 3, {{"a", 5}});
  EXPECT_EQ(file(), before + "3,5,\n");
}

TEST_F(CsvTrackerTest, NamesAFolderThatCannotBeMade) {
  folder_.put("taken", "");
  EXPECT_THAT(
      [&] { make_csv_tracker({.folder = folder_.path() / "taken", .resume_step = {}, .run_name = {}}); },
      ThrowsMessage<ConfigError>(HasSubstr("taken")));
}

}  // namespace
}  // namespace lockstep::track
