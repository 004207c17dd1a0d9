#include "base/async_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "support/config_error.h"
#include "support/refused_calls.h"
#include "support/temporary_folder.h"

namespace lockstep::base {
namespace {

using test::error_of;
using test::refuse_call;
using test::TemporaryFolder;
using testing::HasSubstr;

constexpr int64_t kBlock = AsyncFile::kAlignment;

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char[], Free>;

Memory aligned(int64_t bytes) {
  return Memory(
      static_cast<char*>(std::aligned_alloc(static_cast<size_t>(kBlock), static_cast<size_t>(bytes))));
}

Memory filled(int64_t bytes, unsigned seed) {
  Memory memory = aligned(bytes);
  for (int64_t i = 0; i < bytes; ++i) {
    memory[static_cast<size_t>(i)] = static_cast<char>((static_cast<unsigned>(i) * 31 + seed) >> 3);
  }
  return memory;
}

void expect_round_trip(AsyncFile& file) {
  // Three transfers at once, whose sizes are not multiples of the block size.
  const int64_t bytes = 5 * kBlock;
  std::vector<Memory> written;
  std::vector<AsyncFile::Ticket> tickets;
  for (unsigned i = 0; i < 3; ++i) {
    written.push_back(filled(bytes, i));
    tickets.push_back(file.write(written.back().get(), i * bytes, bytes));
  }
  std::vector<Memory> read;
  for (unsigned i = 0; i < 3; ++i) {
    read.push_back(aligned(bytes));
    tickets.push_back(file.read(read.back().get(), i * bytes, bytes));
  }
  for (const AsyncFile::Ticket ticket : tickets) file.wait(ticket);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::memcmp(read[i].get(), written[i].get(), static_cast<size_t>(bytes)), 0) << i;
  }
}

TEST(AsyncFile, ReadsWhatItWrote) {
  for (const int depth : {1, 2, 64}) {
    const TemporaryFolder folder;
    AsyncFile file(folder.path(), 16 * kBlock, {.block_bytes = 2 * kBlock, .queue_depth = depth});
    expect_round_trip(file);
    // The file has no name, so nothing can be left of it.
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(AsyncFile, WorksInMemoryFileSystems) {
  const TemporaryFolder folder("/dev/shm");
  AsyncFile file(folder.path(), 16 * kBlock);
  expect_round_trip(file);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(AsyncFile, StartsEmptyOfOthersData) {
  const TemporaryFolder folder;
  AsyncFile file(folder.path(), 2 * kBlock);
  const Memory memory = filled(2 * kBlock, 7);
  file.wait(file.read(memory.get(), 0, 2 * kBlock));
  for (size_t i = 0; i < 2 * static_cast<size_t>(kBlock); ++i) ASSERT_EQ(memory[i], 0);
}

TEST(AsyncFile, RefusesAFolderThatIsNotThere) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { AsyncFile(folder.path() / "none", kBlock); }),
              HasSubstr("is not a folder; make it"));
}

// Not even root may write into /proc.
TEST(AsyncFile, RefusesAFolderThatCannotBeWritten) {
  EXPECT_THAT(error_of([] { AsyncFile("/proc", kBlock); }), HasSubstr("cannot be made in '/proc'"));
}

TEST(AsyncFile, SaysBeforehandThatTheDiskIsTooSmall) {
  const TemporaryFolder folder("/dev/shm");
  const std::string error = error_of([&] { AsyncFile(folder.path(), int64_t{1} << 50); });
  EXPECT_THAT(error, HasSubstr("this rank needs 1125899906842624 bytes, and"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(AsyncFile, RefusesTransfersThatAreNotItsOwn) {
  const TemporaryFolder folder;
  AsyncFile file(folder.path(), 2 * kBlock);
  const Memory memory = aligned(2 * kBlock);
  EXPECT_THROW(file.read(memory.get(), kBlock, 2 * kBlock), InternalError);
  EXPECT_THROW(file.read(memory.get() + 8, 0, kBlock), InternalError);
}

TEST(BlockIo, TellsAFileThatEnds) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "short";
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(::ftruncate(fd.get(), kBlock), 0);
  const Memory memory = aligned(4 * kBlock);
  int error = 0;
  const auto uring = make_uring_io(fd.get(), {.block_bytes = kBlock, .queue_depth = 2}, error);
  ASSERT_NE(uring, nullptr) << std::strerror(error);
  EXPECT_EQ(uring->move(BlockIo::Direction::kRead, memory.get(), 0, 4 * kBlock), ENODATA);
  EXPECT_EQ(uring->move(BlockIo::Direction::kRead, memory.get(), 0, kBlock), 0);
  const auto plain = make_plain_io(fd.get(), {.block_bytes = kBlock});
  EXPECT_EQ(plain->move(BlockIo::Direction::kRead, memory.get(), 0, 4 * kBlock), ENODATA);
}

TEST(BlockIo, GivesTheKernelsReason) {
  const UniqueFd fd(::open("/dev/full", O_RDWR));
  const Memory memory = filled(4 * kBlock, 1);
  int error = 0;
  const auto uring = make_uring_io(fd.get(), {.block_bytes = kBlock, .queue_depth = 2}, error);
  ASSERT_NE(uring, nullptr) << std::strerror(error);
  EXPECT_EQ(uring->move(BlockIo::Direction::kWrite, memory.get(), 0, 4 * kBlock), ENOSPC);
  EXPECT_EQ(make_plain_io(fd.get(), {})->move(BlockIo::Direction::kWrite, memory.get(), 0, kBlock), ENOSPC);
}

// The first call submits all blocks except one, and the call with the last one is refused. A later move()
// must not submit that block, because its memory may be freed.
TEST(BlockIo, LeavesNothingOnItsWayWhenTheKernelTakesNoMore) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "blocks";
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT, 0600));
  const Memory content = filled(4 * kBlock, 1);
  ASSERT_EQ(::pwrite(fd.get(), content.get(), 4 * kBlock, 0), 4 * kBlock);
  int error = 0;
  const auto uring = make_uring_io(fd.get(), {.block_bytes = kBlock, .queue_depth = 3}, error);
  ASSERT_NE(uring, nullptr) << std::strerror(error);
  const Memory failed = aligned(4 * kBlock);
  std::thread([&] {
    refuse_call({.number = __NR_io_uring_enter, .error = EIO, .second_argument = 1});
    EXPECT_EQ(uring->move(BlockIo::Direction::kRead, failed.get(), 0, 4 * kBlock), EIO);
  }).join();
  std::memset(failed.get(), 0x5a, 4 * kBlock);
  const Memory whole = aligned(4 * kBlock);
  EXPECT_EQ(uring->move(BlockIo::Direction::kRead, whole.get(), 0, 4 * kBlock), 0);
  EXPECT_EQ(std::memcmp(whole.get(), content.get(), 4 * kBlock), 0);
  const std::vector<char> untouched(4 * kBlock, 0x5a);
  EXPECT_EQ(std::memcmp(failed.get(), untouched.data(), untouched.size()), 0)
      << "memory of the call that failed was written to later";
}

TEST(AsyncFile, DoesWithoutIoUringWhereItIsForbidden) {
  const TemporaryFolder folder;
  std::thread([&] {
    refuse_call({.number = __NR_io_uring_setup, .error = EPERM});
    AsyncFile file(folder.path(), 16 * kBlock, {.block_bytes = 2 * kBlock, .queue_depth = 4});
    EXPECT_FALSE(file.uses_uring());
    expect_round_trip(file);
  }).join();
  AsyncFile file(folder.path(), 16 * kBlock);
  EXPECT_TRUE(file.uses_uring());
}

}  // namespace
}  // namespace lockstep::base
