#include "cluster/meeting.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep::cluster {
namespace {

TEST(DerivedPortTest, StaysBelowTheEphemeralRange) {
  for (int job = 0; job < 20000; ++job) {
    const int port = derived_port("slurm/" + std::to_string(job));
    ASSERT_GE(port, 20000);
    ASSERT_LE(port, 32767);
  }
}

TEST(DerivedPortTest, OffsetsOfOneIdentityNeverCollide) {
  std::set<int> ports;
  for (int step = 0; step < kNumDerivedPorts; ++step)
    ports.insert(derived_port("slurm/7", static_cast<uint64_t>(step)));
  EXPECT_EQ(ports.size(), static_cast<size_t>(kNumDerivedPorts));
}

TEST(DerivedPortTest, ConsecutiveJobsSpread) {
  std::set<int> ports;
  for (int job = 1000; job < 1100; ++job) ports.insert(derived_port("slurm/" + std::to_string(job)));
  EXPECT_GE(ports.size(), 98u);
}

TEST(LoopbackTest, KnowsTheNamesOfThisMachine) {
  for (const char* address : {"localhost", "127.0.0.1", "127.0.1.1", "::1"})
    EXPECT_TRUE(is_loopback(address)) << address;
  for (const char* address : {"vm", "10.0.0.1", "1270.0.0.1", "localhost.example", "::2"}) {
    EXPECT_FALSE(is_loopback(address)) << address;
  }
}

}  // namespace
}  // namespace lockstep::cluster
