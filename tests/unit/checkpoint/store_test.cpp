#include "checkpoint/store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/json.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/error.h"
#include "checkpoint/reader.h"
#include "unit/checkpoint/folder.h"

namespace lockstep::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

Snapshot snapshot_of(int64_t step, std::optional<double> metric = std::nullopt) {
  Snapshot snapshot{.step = step, .epoch = step / 10, .metric = metric, .metadata = {{"seed", step}}};
  snapshot.pieces.push_back(TensorPiece::whole("w", at::full({3, 4}, static_cast<double>(step))));
  return snapshot;
}

std::vector<int64_t> steps(const std::vector<Entry>& entries) {
  std::vector<int64_t> result;
  for (const Entry& entry : entries) result.push_back(entry.step);
  return result;
}

TEST(StoreTest, GivesBackWhatWasSaved) {
  const Folder folder;
  Store store(folder / "checkpoints");
  Snapshot snapshot = snapshot_of(1234);
  snapshot.world_size = 2;
  snapshot.pieces.push_back(TensorPiece::whole("scalar", at::scalar_tensor(2.5, at::kDouble)));
  const Entry entry = store.save(snapshot);

  EXPECT_EQ(entry.path.filename(), "step-0000001234");
  const Reader reader(store.newest_valid()->path);
  EXPECT_EQ(reader.step(), 1234);
  EXPECT_EQ(reader.manifest().epoch, 123);
  EXPECT_EQ(reader.manifest().world_size, 2);
  EXPECT_EQ(reader.metadata(), Json({{"seed", 1234}}));
  EXPECT_THAT(reader.names(), ElementsAre("scalar", "w"));
  EXPECT_TRUE(at::equal(reader.read("w"), snapshot.pieces[0].data));
  EXPECT_TRUE(at::equal(reader.read("scalar"), snapshot.pieces[1].data));
  EXPECT_EQ(read_text(store.folder() / "latest"), "step-0000001234\n");
}

TEST(StoreTest, LeavesNothingButCheckpointsLatestAndLock) {
  const Folder folder;
  Store store(folder.path());
  store.save(snapshot_of(1));
  store.save(snapshot_of(1));
  store.save(snapshot_of(2));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("latest", "lock", "step-0000000001", "step-0000000002"));
  EXPECT_THAT(names_in(folder / "step-0000000002"),
              ElementsAre("manifest.json", "shard-00000-of-00001.safetensors"));
}

TEST(StoreTest, ReplacesAStepThatIsThere) {
  const Folder folder;
  Store store(folder.path());
  store.save(snapshot_of(5));
  Snapshot again = snapshot_of(5);
  again.pieces[0].data.fill_(7);
  store.save(again);
  EXPECT_THAT(steps(store.list()), ElementsAre(5));
  EXPECT_TRUE(at::equal(Reader(store.list()[0].path).read("w"), at::full({3, 4}, 7.0)));
}

TEST(StoreTest, KeepsTheLastAndTheBest) {
  const Folder folder;
  Store store(folder.path(), {.rotation = {.keep_last = 2, .keep_best = 1}});
  const double losses[] = {0.9, 0.1, 0.5, 0.4, 0.3};
  for (int step = 0; step < 5; ++step) store.save(snapshot_of(step, losses[step]));
  EXPECT_THAT(steps(store.list()), ElementsAre(4, 3, 1));
}

// A run that went back to an earlier step goes on from there, not from what it left.
TEST(StoreTest, TheLastSaveIsTheNewestWhateverItsStep) {
  const Folder folder;
  Store store(folder.path(), {.rotation = {.keep_last = 2, .keep_best = 0}});
  store.save(snapshot_of(50));
  store.save(snapshot_of(60));
  store.save(snapshot_of(20));
  EXPECT_THAT(steps(store.list()), ElementsAre(20, 60));
  EXPECT_EQ(store.newest_valid()->step, 20);
}

TEST(StoreTest, RemovesOneButNeverTheOnlyValidOne) {
  const Folder folder;
  Store store(folder.path());
  store.save(snapshot_of(1));
  store.save(snapshot_of(2));
  store.remove(2);
  EXPECT_THAT(steps(store.list()), ElementsAre(1));
  EXPECT_THAT([&] { store.remove(1); }, ThrowsMessage<ConfigError>(HasSubstr("the only valid checkpoint")));
  EXPECT_THAT([&] { store.remove(9); }, ThrowsMessage<ConfigError>(HasSubstr("no step 9")));
}

TEST(StoreTest, ASecondWriterIsToldWhoTheFirstIs) {
  const Folder folder;
  const Store store(folder.path());
  EXPECT_THAT([&] { Store second(folder.path()); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr(fmt::format("process {} on ", ::getpid())),
                                               HasSubstr(folder.path().string()))));
}

TEST(StoreTest, TheNextWriterRemovesWhatADeadOneLeft) {
  const Folder folder;
  std::filesystem::create_directories(folder / ".tmp-step-0000000001-abc");
  write_text(folder / ".tmp-step-0000000001-abc" / "shard-00000-of-00001.safetensors", "half");
  write_text(folder / "latest.123.tmp", "");
  const Store store(folder.path());
  EXPECT_THAT(names_in(folder.path()), ElementsAre("lock"));
}

TEST(StoreTest, ADraftThatIsNotPublishedIsRemoved) {
  const Folder folder;
  Store store(folder.path());
  {
    const Draft draft = store.begin(3, 0);
    EXPECT_TRUE(std::filesystem::exists(draft.folder()));
  }
  EXPECT_THAT(names_in(folder.path()), ElementsAre("lock"));
}

TEST(StoreTest, SeveralRanksWriteOneCheckpoint) {
  const Folder folder;
  Store store(folder.path());
  const at::Tensor whole = at::arange(10, at::kFloat);
  Snapshot snapshot{.step = 8, .world_size = 2};
  Draft draft = store.begin(8, 1000);
  std::vector<ShardIndex> shards;
  for (const int rank : {1, 0}) {
    const at::Tensor own = rank == 0 ? whole.narrow(0, 0, 4) : whole.narrow(0, 4, 6);
    const auto piece = TensorPiece::part("flat", own, {2, 5}, rank == 0 ? 0 : 4);
    const ShardIndex index = write_shard(real_files(), draft.folder(), rank, 2, {piece});
    shards.push_back(ShardIndex::from_json(index.to_json()));
  }
  store.publish(std::move(draft), shards, snapshot);
  const Reader reader(store.newest_valid()->path);
  EXPECT_TRUE(at::equal(reader.read("flat"), whole.view({2, 5})));
  reader.verify();
}

TEST(StoreTest, RanksThatSavedTooLittleAreRefused) {
  const Folder folder;
  Store store(folder.path());
  Draft draft = store.begin(8, 1000);
  const auto piece = TensorPiece::part("flat", at::ones({4}), {2, 5}, 0);
  const ShardIndex index = write_shard(real_files(), draft.folder(), 0, 2, {piece});
  EXPECT_THAT([&] { store.publish(std::move(draft), {index}, {.step = 8}); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr("flat"), HasSubstr("from 4 on are missing"))));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("lock"));
}

TEST(StoreTest, RefusesNumbersThatJsonCannotHold) {
  const Folder folder;
  Store store(folder.path());
  Snapshot snapshot = snapshot_of(1);
  snapshot.metadata = {{"early_stopping", {{"best", std::numeric_limits<double>::infinity()}}}};
  EXPECT_THAT([&] { store.save(snapshot); },
              ThrowsMessage<ConfigError>(HasSubstr("metadata.early_stopping.best is inf")));
}

TEST(StoreTest, AFolderThatCannotBeMadeIsNamed) {
  const Folder folder;
  write_text(folder / "file", "");
  EXPECT_THAT([&] { Store store(folder / "file" / "checkpoints"); },
              ThrowsMessage<CheckpointError>(HasSubstr((folder / "file" / "checkpoints").string())));
}

}  // namespace
}  // namespace lockstep::checkpoint
