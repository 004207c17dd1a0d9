#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "base/block_io.h"
#include "base/unique_fd.h"

namespace lockstep::base {

// A file of a fixed size without a name, for data that need not outlive the process: however
// that ends, nothing is left. Reads and writes run beside the caller, one after the other
// in the order in which they were started, each in several blocks at a time: io_uring, or
// pread and pwrite where the kernel forbids it. Without the page cache (O_DIRECT) where the
// file system can.
//
// One thread at a time.
class AsyncFile {
 public:
  // Memory, offsets and sizes are multiples of it.
  static constexpr int64_t kAlignment = 4096;

  // In this folder, with all blocks reserved. ConfigError: the folder is missing or cannot
  // be written, or its file system has not that many bytes left.
  AsyncFile(const std::filesystem::path& folder, int64_t bytes, const BlockIoOptions& options = {});
  // Waits for what is on its way.
  ~AsyncFile();
  AsyncFile(const AsyncFile&) = delete;
  AsyncFile& operator=(const AsyncFile&) = delete;

  using Ticket = int64_t;
  // Return at once. The memory is the file's until wait().
  Ticket read(void* memory, int64_t offset, int64_t bytes);
  Ticket write(const void* memory, int64_t offset, int64_t bytes);
  // InternalError: this transfer failed, and why. May be called again.
  void wait(Ticket ticket);

  int64_t bytes() const { return bytes_; }
  bool is_direct() const { return is_direct_; }
  bool uses_uring() const { return uses_uring_; }

 private:
  struct Request {
    Ticket ticket = 0;
    BlockIo::Direction direction = BlockIo::Direction::kRead;
    void* memory = nullptr;
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  void open(int64_t bytes);
  void reserve(int64_t bytes);
  void make_io(const BlockIoOptions& options);
  Ticket start(Request request);
  void run();

  const std::filesystem::path folder_;
  const int64_t bytes_;
  UniqueFd fd_;
  bool is_direct_ = false;
  bool uses_uring_ = false;
  std::unique_ptr<BlockIo> io_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<Request> queue_;
  Ticket last_started_ = 0;
  Ticket last_done_ = 0;
  std::set<std::pair<Ticket, std::string>> failures_;
  bool stops_ = false;

  std::thread worker_;
};

}  // namespace lockstep::base
