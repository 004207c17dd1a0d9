#include "cluster/memory_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "support/temporary_folder.h"

namespace lockstep::cluster {
namespace {

using testing::HasSubstr;

class MemoryRoomTest : public testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = folder_.path() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::optional<MemoryRoom> room() const {
    return group_memory_room({(folder_.path() / "membership").string(), (folder_.path() / "root").string()});
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(MemoryRoomTest, Version2TakesTheTightestGroupOnTheWayUp) {
  write("membership", "0::/job/step\n");
  write("root/job/step/memory.max", "max\n");
  write("root/job/step/memory.current", "100\n");
  write("root/job/memory.max", "1000\n");
  write("root/job/memory.current", "700\n");
  write("root/job/memory.stat", "anon 500\ninactive_file 200\n");
  const auto found = room();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->bytes, 500);
  EXPECT_EQ(found->limit_bytes, 1000);
  EXPECT_THAT(found->limit, HasSubstr("root/job"));
  EXPECT_TRUE(found->is_shared);
}

TEST_F(MemoryRoomTest, Version1) {
  write("membership", "4:memory:/job\n1:cpu:/\n0::/\n");
  write("root/memory/job/memory.limit_in_bytes", "4096\n");
  write("root/memory/job/memory.usage_in_bytes", "5000\n");
  write("root/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 904\n");
  write("root/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("root/memory/memory.usage_in_bytes", "1\n");
  const auto found = room();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->bytes, 0);
}

TEST_F(MemoryRoomTest, NoLimitIsNoRoomToTell) {
  write("membership", "0::/\n");
  EXPECT_FALSE(room());
  write("root/memory.max", "max\n");
  write("root/memory.current", "5\n");
  EXPECT_FALSE(room());
}

// In a child: a limit cannot be raised again.
TEST(ProcessMemoryRoom, IsWhatTheLimitLeaves) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{rlim_t{1} << 40, rlim_t{1} << 40};
    if (::setrlimit(RLIMIT_DATA, &limit) != 0) ::_exit(2);
    const auto found = process_memory_room();
    const bool right = found && found->limit == "RLIMIT_DATA" && found->limit_bytes == int64_t{1} << 40 &&
                       found->bytes < int64_t{1} << 40 && found->bytes > int64_t{1} << 39 &&
                       !found->is_shared;
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(RequireMemoryForTest, RefusesRanksThatCannotFitWithTheNumbers) {
  require_memory_for(1);
  EXPECT_THAT([] { require_memory_for(1 << 30); },
              testing::ThrowsMessage<ConfigError>(
                  testing::AllOf(HasSubstr("1073741824 ranks on this host need "), HasSubstr(" each, and "),
                                 HasSubstr(" left: start fewer (nprocs)"))));
}

}  // namespace
}  // namespace lockstep::cluster
