#include "checkpoint/async_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>

#include "checkpoint/error.h"
#include "checkpoint/reader.h"
#include "unit/checkpoint/folder.h"

namespace lockstep::checkpoint {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Snapshot snapshot_with(int64_t step, const at::Tensor& tensor) {
  Snapshot snapshot{.step = step, .metadata = {{"seed", step}}};
  snapshot.pieces.push_back(TensorPiece::whole("w", tensor));
  return snapshot;
}

// Holds a save back until the test lets it go.
struct Gate {
  std::promise<void> promise;
  std::shared_future<void> future = promise.get_future().share();
};

TEST(AsyncWriterTest, SavesTheValuesOfTheMomentOfTheCall) {
  const Folder folder;
  Store store(folder.path());
  Gate gate;
  AsyncWriter writer([&](const Snapshot& snapshot) {
    gate.future.wait();
    return store.save(snapshot);
  });
  const at::Tensor w = at::arange(12).view({3, 4}).t();  // not contiguous
  const at::Tensor expected = w.clone();
  writer.save(snapshot_with(1, w));
  w.fill_(-1);
  EXPECT_TRUE(writer.busy());
  EXPECT_EQ(writer.poll(), std::nullopt);
  gate.promise.set_value();
  ASSERT_EQ(writer.wait()->step, 1);
  EXPECT_EQ(writer.wait(), std::nullopt) << "a result is given once";
  EXPECT_TRUE(at::equal(Reader(store.newest_valid()->path).read("w"), expected));
}

TEST(AsyncWriterTest, OneSaveIsOutstandingAtMost) {
  const Folder folder;
  Store store(folder.path());
  std::atomic<int> running{0};
  AsyncWriter writer([&](const Snapshot& snapshot) {
    EXPECT_EQ(++running, 1);
    const Entry entry = store.save(snapshot);
    --running;
    return entry;
  });
  for (int64_t step = 1; step <= 20; ++step) writer.save(snapshot_with(step, at::full({100}, step)));
  writer.wait();
  EXPECT_EQ(store.newest_valid()->step, 20);
}

TEST(AsyncWriterTest, AnErrorReachesTheCallerOnce) {
  AsyncWriter writer([](const Snapshot&) -> Entry { throw CheckpointError("no space"); });
  writer.save(snapshot_with(1, at::ones({2})));
  EXPECT_THAT([&] { writer.wait(); }, ThrowsMessage<CheckpointError>(HasSubstr("no space")));
  EXPECT_EQ(writer.poll(), std::nullopt);
}

TEST(AsyncWriterTest, AnErrorThatNobodyTookStopsTheNextSave) {
  int calls = 0;
  AsyncWriter writer([&](const Snapshot&) -> Entry {
    if (++calls == 1) throw CheckpointError("no space");
    return {};
  });
  writer.save(snapshot_with(1, at::ones({2})));
  EXPECT_THAT([&] { writer.save(snapshot_with(2, at::ones({2}))); },
              ThrowsMessage<CheckpointError>(HasSubstr("no space")));
  writer.save(snapshot_with(3, at::ones({2})));
  EXPECT_TRUE(writer.wait().has_value());
  EXPECT_EQ(calls, 2);
}

TEST(AsyncWriterTest, AnErrorIsLoggedWhenTheWriterGoes) {
  testing::internal::CaptureStderr();
  {
    AsyncWriter writer([](const Snapshot&) -> Entry { throw CheckpointError("no space"); });
    writer.save(snapshot_with(7, at::ones({2})));
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("step 7 was not saved: [checkpoint] no space"));
}

TEST(AsyncWriterTest, TheDestructorWaitsForTheSave) {
  const Folder folder;
  Store store(folder.path());
  { AsyncWriter(store).save(snapshot_with(4, at::ones({1000}))); }
  EXPECT_EQ(store.newest_valid()->step, 4);
}

TEST(HostCopyTest, KeepsItsMemoryFromCopyToCopy) {
  HostCopy copy;
  const at::Tensor w = at::rand({64, 64});
  const void* first = copy.copy(snapshot_with(1, w)).pieces[0].data.const_data_ptr();
  w.mul_(2);
  const Snapshot second = copy.copy(snapshot_with(2, w));
  EXPECT_EQ(second.pieces[0].data.const_data_ptr(), first);
  EXPECT_TRUE(at::equal(second.pieces[0].data, w));
  EXPECT_EQ(copy.bytes(), 64 * 64 * 4);
  const Snapshot other = copy.copy(snapshot_with(3, at::ones({5}, at::kLong)));
  EXPECT_TRUE(at::equal(other.pieces[0].data, at::ones({5}, at::kLong)));
}

}  // namespace
}  // namespace lockstep::checkpoint
