#include "optim/flat_step.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace lockstep::optim {
namespace {

class ForBlocksTest : public testing::Test {
 protected:
  ~ForBlocksTest() override { at::set_num_threads(before_); }
  const int before_ = at::get_num_threads();
};

TEST_F(ForBlocksTest, EveryBlockOnce) {
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    for (const int64_t blocks : {0, 1, 2, 5, 64, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(blocks));
      for_blocks(blocks, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (const auto& count : seen) EXPECT_EQ(count, 1);
    }
  }
}

// Each waits for the other: a single thread would wait forever.
TEST_F(ForBlocksTest, ThreadsWorkAtTheSameTime) {
  at::set_num_threads(2);
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::thread::id> threads;
  bool all_came = true;
  for_blocks(2, [&](int64_t, int64_t) {
    std::unique_lock lock(mutex);
    threads.insert(std::this_thread::get_id());
    changed.notify_all();
    const bool came = changed.wait_for(lock, std::chrono::seconds(30), [&] { return threads.size() == 2; });
    all_came = all_came && came;
  });
  EXPECT_TRUE(all_came);
  EXPECT_EQ(threads.size(), 2u);
}

}  // namespace
}  // namespace lockstep::optim
