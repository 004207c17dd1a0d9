// After a fault at any call of a save there is a valid newest checkpoint: the old one or the new one.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include <csignal>
#include <filesystem>

#include "checkpoint/async_writer.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "unit/checkpoint/faulty_files.h"
#include "unit/checkpoint/folder.h"

namespace lockstep::checkpoint {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::ThrowsMessage;
using Fault = FaultyFiles::Fault;

// Thousands of saves: in memory, where fsync costs nothing.
constexpr char kMemory[] = "/dev/shm";

Snapshot filled_snapshot(int64_t step, double value) {
  Snapshot snapshot{.step = step, .metadata = {{"value", value}}};
  snapshot.pieces.push_back(TensorPiece::whole("w", at::full({40, 50}, value)));
  snapshot.pieces.push_back(TensorPiece::whole("generator", at::full({16}, value).to(at::kByte)));
  return snapshot;
}

// What is in the folder before the save, and what the save does.
struct Case {
  const char* name;
  std::vector<int64_t> before;  // steps; value = their place, from 1 on
  int64_t step;                 // of the save; value 100
  RotationRule rotation;
  int ranks = 1;  // more: each writes its part of the tensor to its own file
  ManifestLimits manifest = {};
};

std::ostream& operator<<(std::ostream& out, const Case& value) { return out << value.name; }

class FaultTest : public testing::TestWithParam<Case> {
 protected:
  // The log of the store is not checked here.
  FaultTest() { testing::internal::CaptureStderr(); }
  ~FaultTest() override { testing::internal::GetCapturedStderr(); }

  void prepare(const std::filesystem::path& folder) {
    Store store(folder, {.rotation = {.keep_last = 0}});
    double value = 0;
    for (const int64_t step : GetParam().before) store.save(filled_snapshot(step, ++value));
  }

  void save(const std::filesystem::path& folder, FileSystem& files) {
    Store store(folder, {.rotation = GetParam().rotation, .manifest = GetParam().manifest, .files = &files});
    const Snapshot snapshot = filled_snapshot(GetParam().step, 100);
    if (GetParam().ranks == 1) {
      store.save(snapshot);
    } else {
      save_divided(store, files, snapshot);
    }
  }

  // What ranks on one machine do, one after the other.
  static void save_divided(Store& store, FileSystem& files, const Snapshot& snapshot) {
    const int ranks = GetParam().ranks;
    Draft draft = store.begin(snapshot.step, 100'000);
    std::vector<ShardIndex> shards;
    for (int rank = 0; rank < ranks; ++rank) {
      const TensorPiece& whole = snapshot.pieces[0];
      const int64_t count = whole.data.numel() / ranks;
      std::vector<TensorPiece> own = {TensorPiece::part(
          whole.name, whole.data.flatten().narrow(0, rank * count, count), whole.shape, rank * count)};
      if (rank == 0) own.insert(own.end(), snapshot.pieces.begin() + 1, snapshot.pieces.end());
      shards.push_back(write_shard(files, draft.folder(), rank, ranks, own));
    }
    store.publish(std::move(draft), shards, snapshot);
  }

  // The calls of a save to which nothing happens, and the end.
  int count_calls() {
    const Folder folder(kMemory);
    prepare(folder.path());
    FaultyFiles files;
    save(folder.path(), files);
    return files.calls() + 1;
  }

  // The value of the newest; 0: there is none.
  double newest_value(const std::filesystem::path& folder) {
    const auto newest = newest_valid(folder);
    if (!newest) return 0;
    const Reader reader(newest->path);
    const auto value = reader.metadata().at("value").get<double>();
    EXPECT_TRUE(at::equal(reader.read("w"), at::full({40, 50}, value)));
    EXPECT_TRUE(at::equal(reader.read("generator"), at::full({16}, value).to(at::kByte)));
    return value;
  }

  // Old or new; and the next run cleans up, saves, and finds what it saved.
  void expect_valid(const std::filesystem::path& folder, bool must_be_new, const std::string& where) {
    SCOPED_TRACE(where);
    const double old = static_cast<double>(GetParam().before.size());
    const double value = newest_value(folder);
    EXPECT_TRUE(value == 100 || (value == old && !must_be_new)) << value;
    for (const Entry& entry : list(folder)) EXPECT_TRUE(entry.valid()) << entry.problem;
    expect_valid_latest(folder);
    {
      Store store(folder, {.rotation = {.keep_last = 0}});
      EXPECT_EQ(newest_value(folder), value) << "the next run changed what is newest";
      store.save(filled_snapshot(777, 200));
    }
    EXPECT_EQ(newest_value(folder), 200);
    EXPECT_THAT(names_in(folder), Each(Not(AnyOf(StartsWith("."), EndsWith(".tmp")))));
    EXPECT_EQ(read_text(folder / "latest"), "step-0000000777\n");
  }

  // Whole, and of a checkpoint that is there; or none was published yet.
  void expect_valid_latest(const std::filesystem::path& folder) {
    if (!std::filesystem::exists(folder / "latest")) {
      EXPECT_TRUE(GetParam().before.empty()) << "it was there before";
      return;
    }
    std::vector<std::string> valid;
    for (const Entry& entry : list(folder)) valid.push_back(step_name(entry.step) + "\n");
    EXPECT_THAT(valid, Contains(read_text(folder / "latest")));
  }

  void die_at_every_call(Fault fault) {
    const int calls = count_calls();
    ASSERT_GT(calls, 10);
    for (int n = 1; n <= calls; ++n) {
      const Folder folder(kMemory);
      prepare(folder.path());
      FaultyFiles files(fault, n);
      EXPECT_THROW(
          {
            save(folder.path(), files);
            files.end();
          },
          Crash);
      expect_valid(folder.path(), /*must_be_new=*/n == calls, fmt::format("call {} of {}", n, calls));
    }
  }
};

TEST_P(FaultTest, DiesBeforeAnyCall) { die_at_every_call(Fault::kDies); }

TEST_P(FaultTest, DiesInTheMiddleOfAWrite) { die_at_every_call(Fault::kHalfDies); }

TEST_P(FaultTest, LosesPowerBeforeAnyCall) { die_at_every_call(Fault::kPowerLoss); }

TEST_P(FaultTest, AProcessReallyEndsBeforeAnyCall) {
  const int calls = count_calls();
  for (int n = 1; n <= calls; ++n) {
    const Folder folder(kMemory);
    prepare(folder.path());
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FaultyFiles files(Fault::kExits, n);
      save(folder.path(), files);
      files.end();
      ::_exit(1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    expect_valid(folder.path(), n == calls, fmt::format("call {} of {}", n, calls));
  }
}

// The error is thrown, or the save is done: nothing else. What it wrote is gone.
TEST_P(FaultTest, AnyCallFails) {
  const int calls = count_calls();
  for (const int error : {ENOSPC, EIO}) {
    for (int n = 1; n < calls; ++n) {
      const Folder folder(kMemory);
      prepare(folder.path());
      FaultyFiles files(Fault::kFails, n, error);
      bool thrown = false;
      try {
        save(folder.path(), files);
      } catch (const CheckpointError& failure) {
        thrown = true;
        EXPECT_THAT(failure.what(), HasSubstr(std::strerror(error)));
      }
      const std::string where = fmt::format("call {} of {}, {}", n, calls, std::strerror(error));
      EXPECT_THAT(names_in(folder.path()), Each(Not(AnyOf(StartsWith(".tmp-step-"), EndsWith(".tmp")))))
          << where;
      expect_valid(folder.path(), /*must_be_new=*/!thrown, where);
    }
  }
}

TEST_P(FaultTest, ShortWritesAreContinued) {
  const Folder folder(kMemory);
  prepare(folder.path());
  FaultyFiles files;
  files.short_writes = true;
  save(folder.path(), files);
  expect_valid(folder.path(), true, "short writes");
}

INSTANTIATE_TEST_SUITE_P(Cases, FaultTest,
                         testing::Values(Case{"the_first", {}, 1, {}}, Case{"one_more", {1, 2}, 3, {}},
                                         Case{
                                             "the_others_go", {1, 2, 3}, 4, {.keep_last = 1, .keep_best = 0}},
                                         Case{"the_same_step", {1, 2}, 2, {}},
                                         Case{"the_only_step_again", {1}, 1, {.keep_last = 1}},
                                         Case{"an_earlier_step_again", {1, 2}, 1, {}},
                                         Case{"two_ranks", {1, 2}, 3, {.keep_last = 1, .keep_best = 0}, 2},
                                         Case{"two_ranks_the_only_step_again", {1}, 1, {.keep_last = 1}, 2},
                                         Case{"a_divided_manifest",
                                              {1, 2},
                                              2,
                                              {.keep_last = 1, .keep_best = 0},
                                              2,
                                              {.whole_pieces = 1, .index_pieces = 2}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SpaceTest, IsAskedForBeforeAnythingIsWritten) {
  const Folder folder;
  FaultyFiles files;
  Store store(folder.path(), {.files = &files});
  store.save(filled_snapshot(1, 1));
  const int before = files.calls();
  files.pretended_free_bytes = 5000;
  EXPECT_THAT([&] { store.save(filled_snapshot(2, 2)); },
              ThrowsMessage<CheckpointError>(
                  testing::AllOf(HasSubstr(folder.path().string()), HasSubstr("5000 bytes are free"))));
  EXPECT_EQ(files.calls(), before + 1);
  EXPECT_EQ(store.newest_valid()->step, 1);
}

// A real limit of the kernel, in the background, as a full disk would come.
TEST(SpaceTest, AFileThatTheSystemRefusesLeavesTheOneBefore) {
  const Folder folder;
  Store store(folder.path());
  AsyncWriter writer(store);
  writer.save(filled_snapshot(1, 1));
  writer.wait();

  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 4096, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  writer.save(filled_snapshot(2, 2));
  EXPECT_THAT([&] { writer.wait(); }, ThrowsMessage<CheckpointError>(HasSubstr("File too large")));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);

  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("latest", "lock", "step-0000000001"));
  writer.save(filled_snapshot(3, 3));
  EXPECT_EQ(writer.wait()->step, 3);
}

}  // namespace
}  // namespace lockstep::checkpoint
