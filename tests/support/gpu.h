#pragma once

#include <c10/core/Device.h>
#include <gtest/gtest.h>
#include <lockstep/communicator.h>
#include <lockstep/world.h>

#include <functional>

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
