// One checkpoint of two ranks, where a call on one of them fails.

#include "parallel/save_shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/reader.h"
#include "support/group_case.h"
#include "unit/checkpoint/faulty_files.h"
#include "unit/checkpoint/folder.h"

namespace lockstep::parallel {
namespace {

using checkpoint::FaultyFiles;
using checkpoint::Snapshot;
using checkpoint::Store;
using checkpoint::TensorPiece;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A rank's half of a tensor that is full of the step's number.
Snapshot snapshot_of(const Communicator& group, int64_t step) {
  Snapshot snapshot;
  snapshot.step = step;
  snapshot.world_size = 2;
  snapshot.pieces = {
      TensorPiece::part("w", at::full({1000}, static_cast<double>(step)), {40, 50}, 1000 * group.rank())};
  return snapshot;
}

// Each rank's own: what it said, "" where all went well.
struct Outcome {
  std::string errors[2];
  bool struck = false;
};

// Saves step 1, then step 2 with a fault at this call of one rank.
Outcome save(const std::filesystem::path& folder, int faulty_rank, int at_call) {
  Outcome outcome;
  test::run_group({"shm", {0, 0}}, [&](Communicator& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const auto save_with = [&](int64_t step, FaultyFiles& files) {
      std::unique_ptr<Store> store;
      int before = 0;
      if (rank == 0) {
        store = std::make_unique<Store>(
            folder, checkpoint::StoreOptions{.rotation = {.keep_last = 0}, .files = &files});
        before = files.calls();
      }
      std::string error;
      try {
        save_shards(group, store.get(), snapshot_of(group, step), files);
      } catch (const checkpoint::CheckpointError& failure) {
        error = failure.what();
      }
      return std::pair(error, files.calls() - before);
    };
    FaultyFiles none;
    EXPECT_EQ(save_with(1, none).first, "");
    const int opening = [&] {  // calls before the save begins
      if (rank > 0) return 0;
      FaultyFiles files;
      const Store store(folder, {.files = &files});
      return files.calls();
    }();
    FaultyFiles faulty(FaultyFiles::Fault::kFails, group.rank() == faulty_rank ? opening + at_call : -1,
                       ENOSPC);
    const auto [error, calls] = save_with(2, faulty);
    outcome.errors[rank] = error;
    if (group.rank() == faulty_rank) outcome.struck = calls >= at_call;
  });
  return outcome;
}

double newest_value(const std::filesystem::path& folder) {
  const auto newest = checkpoint::newest_valid(folder);
  if (!newest) return 0;
  const at::Tensor saved = checkpoint::Reader(newest->path).read("w");
  EXPECT_TRUE(at::equal(saved, at::full({40, 50}, saved.flatten()[0].item<double>())));
  return saved.flatten()[0].item<double>();
}

class SaveShardsTest : public testing::TestWithParam<int> {};

// All ranks are told, and by whom; the checkpoint before stays, or the new one is whole.
TEST_P(SaveShardsTest, AnyCallFails) {
  int failures = 0;
  for (int call = 1;; ++call) {
    SCOPED_TRACE("call " + std::to_string(call));
    const checkpoint::Folder folder("/dev/shm");
    testing::internal::CaptureStderr();
    const Outcome outcome = save(folder.path(), GetParam(), call);
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(outcome.errors[0], outcome.errors[1]);
    const bool failed = !outcome.errors[0].empty();
    if (failed) {
      ++failures;
      EXPECT_THAT(outcome.errors[0], HasSubstr("rank " + std::to_string(GetParam()) + ": "));
      EXPECT_THAT(outcome.errors[0], HasSubstr("No space left"));
    }
    const double newest = newest_value(folder.path());
    EXPECT_TRUE(newest == 2 || (newest == 1 && failed)) << newest;
    EXPECT_THAT(checkpoint::names_in(folder.path()), Each(Not(StartsWith(".tmp-step-"))));
    EXPECT_EQ(save(folder.path(), 0, 1000).errors[0], "") << "the next run saves as if nothing had been";
    EXPECT_EQ(newest_value(folder.path()), 2);
    if (!outcome.struck) break;
  }
  EXPECT_GE(failures, 3) << "to make, to write, to sync its file";
}

INSTANTIATE_TEST_SUITE_P(Ranks, SaveShardsTest, testing::Values(0, 1),
                         [](const auto& info) { return "rank" + std::to_string(info.param); });

}  // namespace
}  // namespace lockstep::parallel
