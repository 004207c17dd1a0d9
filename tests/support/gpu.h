#pragma once

#include <c10/core/Device.h>
#include <gtest/gtest.h>
#include <lockstep/communicator.h>
#include <lockstep/launch.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <vector>

#include "support/rank_processes.h"

namespace lockstep::test {

// A test on a GPU. Where there is none it fails with the reason; it is never skipped.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override;

  c10::Device device() const { return device_; }
  // A group of one rank over NCCL.
  Communicator alone() const;
  // Runs `body` as every rank of a job of so many processes that share the GPU, over Gloo.
  // Each of them is this program again with this test alone; a failure of one is this
  // test's. No threads: backward of all threads runs on one thread of the device, where a
  // rank would wait for another that comes after it. Call it once a test, and first.
  void run_processes(int size, const std::function<void(World&)>& body) const;
  // The same over NCCL, by LOCKSTEP_NCCL_SHARE_DEVICE. The GPU gives each process a turn of some
  // milliseconds, so that a collective takes about ten with two ranks, and fifty with four.
  void run_nccl(int size, const std::function<void(World&)>& body) const;
  // The same, with ranks that end otherwise, and this timeout of a collective.
  void run_nccl(RankProcesses job, std::chrono::milliseconds timeout,
                const std::function<void(World&)>& body) const;
  CommunicatorOptions nccl_options(std::chrono::milliseconds timeout) const;
  // Runs `body` in a world of some ranks of `world`, on these, and waits for them on all.
  static void on_ranks(const World& world, const std::vector<int>& ranks,
                       const std::function<void(World&)>& body);
  // The same on all ranks of a job.
  static std::filesystem::path shared_folder(const World& world);
  // `job` with the variable that lets ranks share the GPU over NCCL.
  static RankProcesses sharing(RankProcesses job);

 private:
  c10::Device device_{c10::kCPU};
};

// While it lives, every operation of LibTorch that makes the host wait for the device
// throws, in all threads: "called a synchronizing CUDA operation".
class NoHostWait {
 public:
  NoHostWait();
  ~NoHostWait();
  NoHostWait(const NoHostWait&) = delete;
  NoHostWait& operator=(const NoHostWait&) = delete;
};

}  // namespace lockstep::test
