#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace lockstep::base {

struct BlockIoOptions {
  int64_t block_bytes = 1 << 20;
  int queue_depth = 8;
};

// Transfers long ranges of bytes between memory and an open file in blocks. One thread at a time.
class BlockIo {
 public:
  enum class Direction { kRead, kWrite };

  virtual ~BlockIo() = default;
  // Blocks until all bytes are transferred. Returns 0 or an errno; ENODATA: the file ended.
  virtual int move(Direction direction, void* memory, int64_t offset, int64_t bytes) = 0;
};

// Uses io_uring, with up to queue_depth blocks in flight. Null: the kernel does not allow io_uring
// here; `error` is set to the errno.
std::unique_ptr<BlockIo> make_uring_io(int fd, const BlockIoOptions& options, int& error);
// Uses pread and pwrite, one block at a time.
std::unique_ptr<BlockIo> make_plain_io(int fd, const BlockIoOptions& options);

// An unnamed file of a fixed size for data that need not outlive the process: nothing is left on the
// disk, however the process ends. Reads and writes run on a thread of this object, one after the other
// in the order in which they were started, through io_uring if the kernel allows it, else through
// pread and pwrite. They bypass the page cache (O_DIRECT) if the file system can.
//
// One thread at a time may call it.
class AsyncFile {
 public:
  // Memory addresses, offsets and sizes are multiples of this.
  static constexpr int64_t kAlignment = 4096;

  // Creates the file in this folder and reserves all its blocks. ConfigError: the folder is missing or
  // not writable, or its file system has too few free bytes.
  AsyncFile(const std::filesystem::path& folder, int64_t bytes, const BlockIoOptions& options = {});
  // Waits for the transfers in flight.
  ~AsyncFile();
  AsyncFile(const AsyncFile&) = delete;
  AsyncFile& operator=(const AsyncFile&) = delete;

  using Ticket = int64_t;
  // Return at once. The caller leaves the memory alone until wait().
  Ticket read(void* memory, int64_t offset, int64_t bytes);
  Ticket write(const void* memory, int64_t offset, int64_t bytes);
  // Blocks until the transfer has ended. InternalError: it failed, with the reason. May be called again.
  void wait(Ticket ticket) LOCKSTEP_EXCLUDES(mutex_);

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
  Ticket start(Request request) LOCKSTEP_EXCLUDES(mutex_);
  void run() LOCKSTEP_EXCLUDES(mutex_);

  const std::filesystem::path folder_;
  const int64_t bytes_;
  UniqueFd fd_;
  bool is_direct_ = false;
  bool uses_uring_ = false;
  std::unique_ptr<BlockIo> io_;

  Mutex mutex_;
  Condition changed_;
  std::deque<Request> queue_ LOCKSTEP_GUARDED_BY(mutex_);
  Ticket last_started_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  Ticket last_done_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::map<Ticket, std::string> failures_ LOCKSTEP_GUARDED_BY(mutex_);
  bool is_stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;

  std::thread worker_;
};

}  // namespace lockstep::base
