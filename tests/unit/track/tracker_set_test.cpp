#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/track.h>

#include "base/environment.h"
#include "unit/track/file_size_limit.h"
#include "unit/track/run_folder.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::ThrowsMessage;
using track::FileSizeLimit;
using track::RunFolder;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

void write(TrackerSet& trackers, int64_t step) {
  const std::vector<Scalar> scalars = {{"loss", 0.5}};
  trackers.write_scalars(scalars, step);
}

TEST(TrackerSetTest, WritesToAll) {
  const RunFolder folder;
  TrackerSet trackers = TrackerSet::open(std::vector<std::string>{"csv", "jsonl"}, folder.new_run());
  write(trackers, 1);
  trackers.close(RunStatus::kFinished);
  EXPECT_EQ(folder.content_of("metrics.csv"), "step,loss\n1,0.5\n");
  EXPECT_THAT(folder.content_of("metrics.jsonl"), HasSubstr("\"loss\":0.5"));
}

TEST(TrackerSetTest, SaysOnceThatATrackerFailsAndGoesOnWithAll) {
  const RunFolder folder;
  testing::internal::CaptureStderr();
  TrackerSet trackers = TrackerSet::open(std::vector<std::string>{"csv", "jsonl"}, folder.new_run());
  write(trackers, 1);
  // The file of jsonl is now larger than that of csv and than the log output in between.
  trackers.write_text("model", std::string(4000, 'x'), 1);
  {
    const FileSizeLimit limit(folder.content_of("metrics.jsonl").size());
    write(trackers, 2);
    write(trackers, 3);
  }
  write(trackers, 4);
  trackers.close(RunStatus::kFinished);

  EXPECT_EQ(folder.content_of("metrics.csv"), "step,loss\n1,0.5\n2,0.5\n3,0.5\n4,0.5\n");
  EXPECT_EQ(count(folder.content_of("metrics.jsonl"), "\n"), 3);  // step 1, the text, step 4
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(said, "warning"), 1) << said;
  EXPECT_THAT(said, AllOf(HasSubstr("'jsonl'"), HasSubstr("metrics.jsonl"), HasSubstr("File too large"),
                          HasSubstr("lost 2 writes"), Not(HasSubstr("'csv'"))));
}

class BrokenTracker final : public Tracker {
 public:
  explicit BrokenTracker(RunStatus* closed_as) : closed_as_(closed_as) {}
  std::string_view name() const override { return "broken"; }
  void write_scalars(std::span<const Scalar> scalars, int64_t step) override { throw std::bad_alloc(); }
  void close(RunStatus status) override {
    *closed_as_ = status;
    throw std::runtime_error("cannot close");
  }

 private:
  RunStatus* closed_as_;
};

TEST(TrackerSetTest, NothingThatATrackerThrowsComesThrough) {
  testing::internal::CaptureStderr();
  RunStatus closed_as = RunStatus::kFinished;
  {
    TrackerSet trackers;
    trackers.add(std::make_unique<BrokenTracker>(&closed_as));
    write(trackers, 1);
    trackers.write_text("default", "does nothing", 1);
  }
  EXPECT_EQ(closed_as, RunStatus::kFailed);  // close() was not called
  EXPECT_EQ(count(testing::internal::GetCapturedStderr(), "warning"), 1);
}

TEST(TrackerSetTest, OpeningTellsTheUserWhatIsWrong) {
  const RunFolder folder;
  const auto open = [&](std::vector<std::string> names) {
    return [&folder, names] { TrackerSet::open(names, folder.new_run()); };
  };
  EXPECT_THAT(
      open({"csv", "wandb"}),
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("'wandb'"), HasSubstr("tensorboard, mlflow, csv, jsonl"))));
  EXPECT_THAT(open({"csv", "csv"}), ThrowsMessage<ConfigError>(HasSubstr("twice")));
  EXPECT_THAT(folder.names(), IsEmpty());  // nothing was opened for that
}

TEST(MakeTrackerTest, KnowsEveryNameItLists) {
  EXPECT_THAT(tracker_names(), ElementsAre("tensorboard", "mlflow", "csv", "jsonl"));
  const RunFolder folder;
  const base::Environment environment = {{"MLFLOW_TRACKING_URI", "http://127.0.0.1:1"}};
  testing::internal::CaptureStderr();
  for (const std::string_view name : tracker_names()) {
    EXPECT_EQ(make_tracker(name, folder.new_run(), environment)->name(), name);
  }
  testing::internal::GetCapturedStderr();  // mlflow finds no server
}

}  // namespace
}  // namespace lockstep
