#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/json.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "checkpoint/catalog.h"
#include "checkpoint/checksum.h"
#include "checkpoint/error.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "unit/checkpoint/folder.h"

namespace lockstep::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
using Best = RotationRule::Best;

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

// A run that resumed from an earlier step resumes from its last save, not from a later step.
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

// Manifests with index files, because they have many pieces (tensors times ranks).
constexpr ManifestLimits kSmall = {.whole_pieces = 2, .index_pieces = 3};

class DividedManifestTest : public testing::Test {
 protected:
  // Three tensors in two parts each, from two ranks, and a scalar.
  std::filesystem::path save(Store& store, int64_t step) {
    const Snapshot snapshot{.step = step, .world_size = 2};
    Draft draft = store.begin(step, 0);
    std::vector<ShardIndex> shards;
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<TensorPiece> pieces;
      for (const char* name : {"a", "b", "c"}) {
        pieces.push_back(
            TensorPiece::part(name, (values_ * step).narrow(0, 10 * rank, 10), {4, 5}, 10 * rank));
      }
      if (rank == 0) pieces.push_back(TensorPiece::whole("scalar", at::scalar_tensor(step)));
      shards.push_back(write_shard(real_files(), draft.folder(), rank, 2, pieces));
    }
    return store.publish(std::move(draft), shards, snapshot).path;
  }

  Folder folder_{"/dev/shm"};
  at::Tensor values_ = at::arange(20, at::kLong);
};

TEST_F(DividedManifestTest, IsReadIndexByIndex) {
  Store store(folder_.path(), {.manifest = kSmall});
  const std::filesystem::path path = save(store, 3);
  EXPECT_THAT(
      names_in(path),
      ElementsAre("index-00000-of-00003.json", "index-00001-of-00003.json", "index-00002-of-00003.json",
                  "manifest.json", "shard-00000-of-00002.safetensors", "shard-00001-of-00002.safetensors"));
  const Reader reader(path);
  const int64_t manifest_bytes = reader.bytes_read();
  EXPECT_EQ(manifest_bytes, static_cast<int64_t>(std::filesystem::file_size(path / kManifestName)));
  EXPECT_THAT(reader.names(), ElementsAre("a", "b", "c", "scalar"));
  EXPECT_EQ(reader.entry("b").shape, std::vector<int64_t>({4, 5}));
  const at::Tensor out = at::zeros({4}, at::kLong);
  reader.read_range("b", 8, 4, out);
  EXPECT_TRUE(at::equal(out, values_.narrow(0, 8, 4) * 3));
  const auto index_bytes =
      static_cast<int64_t>(std::filesystem::file_size(path / "index-00001-of-00003.json"));
  EXPECT_EQ(reader.bytes_read() - manifest_bytes, index_bytes + 4 * 8) << "one index, and the elements";
  EXPECT_TRUE(at::equal(reader.read("c"), values_.view({4, 5}) * 3));
  EXPECT_EQ(reader.read("scalar").item<int64_t>(), 3);
  Reader(path).verify();
  EXPECT_EQ(store.newest_valid()->step, 3);
}

// A Lockstep that only knows version 1 can then read it.
TEST_F(DividedManifestTest, IsWholeWhereThatIsShort) {
  Store store(folder_.path());
  const std::filesystem::path path = save(store, 3);
  EXPECT_THAT(read_text(path / kManifestName), HasSubstr("\"version\": 1"));
  EXPECT_THAT(names_in(path), ElementsAre("manifest.json", "shard-00000-of-00002.safetensors",
                                          "shard-00001-of-00002.safetensors"));
  EXPECT_TRUE(at::equal(Reader(path).read("c"), values_.view({4, 5}) * 3));
}

TEST_F(DividedManifestTest, AnIndexFileThatIsNotTheSavedOneIsFound) {
  Store store(folder_.path(), {.rotation = {.keep_last = 0}, .manifest = kSmall});
  save(store, 1);
  const std::filesystem::path path = save(store, 2);
  const std::filesystem::path index = path / "index-00001-of-00003.json";
  const std::string whole = read_text(index);
  const auto expect_found = [&](const std::string& text, const char* reason) {
    write_text(index, text);
    EXPECT_THAT([&] { Reader(path).verify(); },
                ThrowsMessage<CheckpointError>(AllOf(HasSubstr(index.string()), HasSubstr(reason))));
    testing::internal::CaptureStderr();
    EXPECT_EQ(store.newest_valid()->step, 1);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(index.string()));
    write_text(index, whole);
  };
  expect_found(whole.substr(0, whole.size() - 1), "cut or changed");
  std::string changed = whole;
  changed[whole.size() / 2] ^= 1;
  expect_found(changed, "checksum");
  std::string other = read_text(folder_ / "step-0000000001" / "index-00001-of-00003.json");
  ASSERT_EQ(other.size(), whole.size());
  expect_found(other, "checksum");
  std::filesystem::remove(index);
  EXPECT_THAT([&] { const Reader reader(path); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr(index.string()), HasSubstr("No such file"))));
}

TEST_F(DividedManifestTest, RanksThatSaveTooLittlePublishNothing) {
  Store store(folder_.path(), {.manifest = kSmall});
  save(store, 1);
  Draft draft = store.begin(2, 0);
  const std::vector<TensorPiece> half = {TensorPiece::part("a", values_.narrow(0, 0, 10), {4, 5}, 0),
                                         TensorPiece::whole("b", values_), TensorPiece::whole("c", values_)};
  const std::vector<ShardIndex> shards = {write_shard(real_files(), draft.folder(), 0, 1, half)};
  EXPECT_THAT(
      [&] { store.publish(std::move(draft), shards, {.step = 2}); },
      ThrowsMessage<CheckpointError>(HasSubstr("tensors.a: pieces: elements from 10 on are missing")));
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("latest", "lock", "step-0000000001"));
}

// A manifest that could not be read is not published, and the old checkpoints stay.
TEST_F(DividedManifestTest, WhatIsTooLongToBeReadIsNotPublished) {
  Store store(folder_.path(), {.manifest = {.max_bytes = 10'000}});
  Snapshot snapshot{.step = 1};
  snapshot.pieces.push_back(TensorPiece::whole("w", values_));
  store.save(snapshot);
  snapshot.step = 2;
  snapshot.metadata["text"] = std::string(20'000, 'x');
  EXPECT_THAT([&] { store.save(snapshot); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr("manifest.json' would have 2"),
                                                   HasSubstr("more than 10000 are not read"))));
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("latest", "lock", "step-0000000001"));
}

// A transformer of 70 billion parameters on 1024 ranks, with bfloat16 weights, float32 masters
// and Adam: its shards as files without content, its pieces as ranks would report them.
TEST_F(DividedManifestTest, HoldsSeventyBillionParametersOnAThousandRanks) {
  constexpr int64_t kRanks = 1024;
  std::vector<std::pair<std::string, int64_t>> parameters = {{"embedding", 32000 * 8192},
                                                             {"head", 32000 * 8192}};
  for (int layer = 0; layer < 80; ++layer) {
    for (const char* name : {"q", "o"})
      parameters.emplace_back(fmt::format("{}.{}", layer, name), 8192 * 8192);
    for (const char* name : {"k", "v"})
      parameters.emplace_back(fmt::format("{}.{}", layer, name), 8192 * 1024);
    for (const char* name : {"gate", "up", "down"}) {
      parameters.emplace_back(fmt::format("{}.{}", layer, name), 8192 * 28672);
    }
  }
  Store store(folder_.path(), {.sync = false});
  Draft draft = store.begin(1, 0);
  std::vector<ShardIndex> shards;
  int64_t elements = 0;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    ShardIndex& shard = shards.emplace_back();
    int64_t offset = 0;
    for (const char* section : {"model.", "lockstep/master/", "lockstep/exp_avg/", "lockstep/exp_avg_sq/"}) {
      const at::ScalarType dtype = section[0] == 'm' ? at::kBFloat16 : at::kFloat;
      for (const auto& [name, numel] : parameters) {
        const int64_t count = numel / kRanks;
        const Piece piece{.file = 0,
                          .offset = offset,
                          .first = rank * count,
                          .count = count,
                          .checksum = fmt::format("{:032x}", offset + rank)};
        shard.tensors[section + name] = {.dtype = dtype, .shape = {numel}, .pieces = {piece}};
        offset += count * static_cast<int64_t>(c10::elementSize(dtype));
        elements += section[0] == 'm' ? count : 0;
      }
    }
    shard.file = {.name = shard_name(static_cast<int>(rank), kRanks),
                  .bytes = offset,
                  .header_checksum = std::string(kChecksumDigits, '0')};
    write_text(draft.folder() / shard.file.name, "");
    std::filesystem::resize_file(draft.folder() / shard.file.name, static_cast<uintmax_t>(offset));
  }
  EXPECT_GT(elements, 68'000'000'000);
  const Entry saved =
      store.publish(std::move(draft), std::move(shards), {.step = 1, .world_size = static_cast<int>(kRanks)});
  EXPECT_TRUE(store.list().at(0).valid()) << store.list().at(0).problem;
  const Reader reader(saved.path);
  EXPECT_LT(reader.bytes_read(), 1 << 20) << "what every look at the folder costs";
  const int64_t count = 8192 * 28672 / kRanks;
  // From the end of one rank's piece to the beginning of the next one's.
  const at::Tensor out = at::ones({10});
  reader.read_range("lockstep/exp_avg_sq/79.down", 1022 * count - 5, 10, out);
  EXPECT_TRUE(at::equal(out, at::zeros_like(out)));
  EXPECT_LT(reader.bytes_read(), 8 << 20) << "the manifest and one index";
}

TEST(StoreTest, AMetricKeepsItsNameAndMode) {
  const Folder folder;
  Store store(folder.path());
  Snapshot named = snapshot_of(1, 0.5);
  named.metric_kind = {"val_accuracy", "max"};
  store.save(named);
  store.save(snapshot_of(2, 0.25));
  const std::vector<Entry> entries = store.list();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_FALSE(entries[0].metric_kind.known()) << "as in earlier versions";
  EXPECT_EQ(entries[0].metric, 0.25);
  EXPECT_EQ(entries[1].metric_kind, (MetricKind{"val_accuracy", "max"}));
  EXPECT_EQ(entries[1].metric, 0.5);
}

Entry entry(std::optional<double> metric, bool valid = true) {
  return {.metric = metric, .problem = valid ? "" : "broken"};
}

TEST(RotationTest, KeepsTheNewest) {
  const std::vector<Entry> entries(5, entry(std::nullopt));
  EXPECT_THAT(to_remove(entries, {.keep_last = 2}), ElementsAre(2, 3, 4));
  EXPECT_THAT(to_remove(entries, {.keep_last = 9}), IsEmpty());
  EXPECT_THAT(to_remove(entries, {.keep_last = 0}), IsEmpty());
}

TEST(RotationTest, KeepsTheBestBesideTheNewest) {
  const std::vector<Entry> entries = {entry(0.5), entry(0.4), entry(0.9), entry(0.1), entry(0.2)};
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 1}), ElementsAre(1, 2, 4));
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 2}), ElementsAre(1, 2));
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 1, .best = Best::kMax}), ElementsAre(1, 3, 4));
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 0}), ElementsAre(1, 2, 3, 4));
}

TEST(RotationTest, WhatWasSavedAsTheBestCountsMoreThanTheMetric) {
  std::vector<Entry> entries = {entry(0.5), entry(0.4), entry(0.9), entry(0.1), entry(0.7)};
  entries[2].best = true;
  entries[4].best = true;
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 1}), ElementsAre(1, 3, 4));
  EXPECT_THAT(best_first(entries, Best::kSaved), ElementsAre(2, 4, 3, 1, 0));
  EXPECT_THAT(best_first(entries, Best::kMin), ElementsAre(3, 1, 0, 4, 2));
}

TEST(RotationTest, ValuesOfAnotherMetricOrModeAreNotCompared) {
  const MetricKind loss{"val_loss", "min"};
  const MetricKind accuracy{"val_accuracy", "max"};
  const auto of = [](double value, const MetricKind& kind) {
    Entry one = entry(value);
    one.metric_kind = kind;
    return one;
  };
  // A loss of 2 is no accuracy; a value of an earlier version may be one.
  const std::vector<Entry> entries = {
      of(0.3, accuracy), of(0.9, accuracy), of(0.8, accuracy), of(2, loss), of(3, {"val_accuracy", "min"}),
      entry(0.85)};
  const RotationRule rule{.keep_last = 1, .keep_best = 2, .best = Best::kMax, .metric = accuracy};
  EXPECT_THAT(to_remove(entries, rule), ElementsAre(2, 3, 4));
  EXPECT_THAT(best_first(entries, Best::kMax, accuracy), ElementsAre(1, 5, 2, 0));
}

TEST(RotationTest, ANaNIsNotRanked) {
  const std::vector<Entry> entries = {entry(0.5), entry(std::nan("")), entry(0.2), entry(0.4)};
  EXPECT_THAT(best_first(entries, Best::kMin), ElementsAre(2, 3, 0));
}

TEST(RotationTest, OfEqualsTheNewerIsTheBest) {
  const std::vector<Entry> entries = {entry(0.5), entry(0.1), entry(0.1)};
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 1}), ElementsAre(2));
}

TEST(RotationTest, BrokenOnesNeitherCountNorGo) {
  const std::vector<Entry> entries = {entry(0.5), entry(0.6), entry(0.0, false), entry(0.1, false)};
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 1}), ElementsAre(1));
  EXPECT_THAT(to_remove({entry(0.3, false), entry(0.5)}, {.keep_last = 1, .keep_best = 0}), IsEmpty());
}

}  // namespace
}  // namespace lockstep::checkpoint
