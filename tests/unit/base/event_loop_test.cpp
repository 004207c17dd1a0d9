#include "base/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::base {
namespace {

using std::chrono::milliseconds;

struct BytePipe {
  BytePipe() {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("pipe");
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  void put(char c) const { ASSERT_EQ(::write(write.get(), &c, 1), 1); }
  char get() const {
    char c = 0;
    EXPECT_EQ(::read(read.get(), &c, 1), 1);
    return c;
  }
  UniqueFd read, write;
};

TEST(EventLoopTest, CallsWhileADescriptorIsReady) {
  EventLoop loop;
  const BytePipe pipe;
  std::string got;
  loop.watch(pipe.read.get(), EPOLLIN, [&](uint32_t) {
    got += pipe.get();
    if (got.size() == 2) loop.stop();
  });
  pipe.put('a');
  pipe.put('b');
  loop.run();
  EXPECT_EQ(got, "ab");
}

TEST(EventLoopTest, ReportsTheEndOfAPipe) {
  EventLoop loop;
  BytePipe pipe;
  uint32_t seen = 0;
  loop.watch(pipe.read.get(), EPOLLIN, [&](uint32_t events) {
    seen = events;
    loop.stop();
  });
  pipe.write.reset();
  loop.run();
  EXPECT_TRUE(seen & EPOLLHUP);
}

TEST(EventLoopTest, TimersRunInTheirOrderAndOnce) {
  EventLoop loop;
  std::vector<int> order;
  loop.after(milliseconds(2), [&] {
    order.push_back(2);
    loop.stop();
  });
  loop.after(milliseconds(0), [&] { order.push_back(0); });
  loop.after(milliseconds(1), [&] { order.push_back(1); });
  loop.run();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(EventLoopTest, ACancelledTimerDoesNotRun) {
  EventLoop loop;
  bool ran = false;
  const EventLoop::Timer timer = loop.after(milliseconds(0), [&] { ran = true; });
  loop.cancel(timer);
  loop.cancel(timer);
  loop.after(milliseconds(1), [&] { loop.stop(); });
  loop.run();
  EXPECT_FALSE(ran);
}

TEST(EventLoopTest, ATimerThatSchedulesItselfLeavesRoomForDescriptors) {
  EventLoop loop;
  const BytePipe pipe;
  std::function<void()> again = [&] { loop.after(milliseconds(0), again); };
  again();
  loop.watch(pipe.read.get(), EPOLLIN, [&](uint32_t) { loop.stop(); });
  pipe.put('x');
  loop.run();
}

TEST(EventLoopTest, ACallbackMayForgetItselfAndOthers) {
  EventLoop loop;
  const BytePipe first, second;
  int calls = 0;
  const auto forget_both = [&](uint32_t) {
    ++calls;
    loop.forget(first.read.get());
    loop.forget(second.read.get());
  };
  loop.watch(first.read.get(), EPOLLIN, forget_both);
  loop.watch(second.read.get(), EPOLLIN, forget_both);
  first.put('x');
  second.put('x');
  loop.after(milliseconds(5), [&] { loop.stop(); });
  loop.run();
  EXPECT_EQ(calls, 1);
}

TEST(EventLoopTest, NoInterestNoCall) {
  EventLoop loop;
  const BytePipe pipe;
  int calls = 0;
  loop.watch(pipe.read.get(), EPOLLIN, [&](uint32_t) { ++calls; });
  loop.change(pipe.read.get(), 0);
  pipe.put('x');
  loop.run_once(milliseconds(1));
  EXPECT_EQ(calls, 0);
  loop.change(pipe.read.get(), EPOLLIN);
  loop.run_once(milliseconds(1000));
  EXPECT_EQ(calls, 1);
}

TEST(EventLoopTest, RunGoesOnAfterAnException) {
  EventLoop loop;
  loop.after(milliseconds(0), [] { throw std::runtime_error("planted"); });
  EXPECT_THROW(loop.run(), std::runtime_error);
  loop.after(milliseconds(0), [&] { loop.stop(); });
  loop.run();
}

TEST(EventLoopTest, OtherThreadsPost) {
  EventLoop loop;
  std::vector<int> order;
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) loop.post([&, i] { order.push_back(i); });
    loop.post([&] { loop.stop(); });
  });
  loop.run();
  other.join();
  ASSERT_EQ(order.size(), 100U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(EventLoopTest, WhatIsPostedBehindAnErrorIsStillDone) {
  EventLoop loop;
  bool done = false;
  loop.post([] { throw std::runtime_error("first"); });
  loop.post([&] {
    done = true;
    loop.stop();
  });
  EXPECT_THROW(loop.run(), std::runtime_error);
  loop.run();
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace lockstep::base
