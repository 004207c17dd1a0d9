#include "base/async_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fmt/format.h>
#include <liburing.h>
#include <lockstep/error.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/log.h"

namespace lockstep::base {
namespace {

// The rest of one block.
struct Piece {
  char* memory = nullptr;
  int64_t offset = 0;
  int64_t bytes = 0;
};

class PlainIo final : public BlockIo {
 public:
  PlainIo(int fd, const BlockIoOptions& options) : fd_(fd), options_(options) {}

  int move(Direction direction, void* memory, int64_t offset, int64_t bytes) override {
    Piece rest{static_cast<char*>(memory), offset, bytes};
    while (rest.bytes > 0) {
      const auto count = static_cast<size_t>(std::min(rest.bytes, options_.block_bytes));
      const ssize_t moved = direction == Direction::kRead ? ::pread(fd_, rest.memory, count, rest.offset)
                                                          : ::pwrite(fd_, rest.memory, count, rest.offset);
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0) return errno;
      if (moved == 0) return ENODATA;
      rest = {rest.memory + moved, rest.offset + moved, rest.bytes - moved};
    }
    return 0;
  }

 private:
  const int fd_;
  const BlockIoOptions options_;
};

class UringIo final : public BlockIo {
 public:
  UringIo(int fd, const BlockIoOptions& options, int& error)
      : fd_(fd), options_(options), pieces_(static_cast<size_t>(options.queue_depth)) {
    error = open();
  }
  ~UringIo() override { close(); }
  UringIo(const UringIo&) = delete;
  UringIo& operator=(const UringIo&) = delete;

  int move(Direction direction, void* memory, int64_t offset, int64_t bytes) override {
    Piece rest{static_cast<char*>(memory), offset, bytes};
    if (!is_open_) {
      if (const int error = open(); error != 0) return error;
    }
    std::vector<size_t> idle;
    for (size_t slot = 0; slot < pieces_.size(); ++slot) idle.push_back(slot);
    int error = 0;
    while (true) {
      while (error == 0 && !idle.empty() && rest.bytes > 0) {
        const size_t slot = idle.back();
        idle.pop_back();
        pieces_[slot] = {rest.memory, rest.offset, std::min(rest.bytes, options_.block_bytes)};
        rest = {rest.memory + pieces_[slot].bytes, rest.offset + pieces_[slot].bytes,
                rest.bytes - pieces_[slot].bytes};
        prepare(direction, slot);
      }
      // Also after an error: the kernel uses the caller's memory until every block has completed.
      if (idle.size() == pieces_.size()) return error;
      const int submitted = ::io_uring_submit_and_wait(&ring_, 1);
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) {
        abandon();
        return -submitted;
      }
      if (submitted > 0) in_flight_ += submitted;
      reap(direction, idle, error);
    }
  }

 private:
  int open() {
    const int error = -::io_uring_queue_init(static_cast<unsigned>(options_.queue_depth), &ring_, 0);
    is_open_ = error == 0;
    in_flight_ = 0;
    return error;
  }

  void close() {
    if (is_open_) ::io_uring_queue_exit(&ring_);
    is_open_ = false;
  }

  // After a failed submit: waits for the blocks in flight, whose memory is the caller's, and closes the
  // ring, because a later call would submit the blocks that the kernel has not accepted.
  void abandon() {
    io_uring_cqe* completion = nullptr;
    while (in_flight_ > 0) {
      const int error = ::io_uring_wait_cqe(&ring_, &completion);
      if (error == -EINTR || error == -EAGAIN) continue;
      if (error != 0) break;  // the ring itself is broken
      ::io_uring_cqe_seen(&ring_, completion);
      --in_flight_;
    }
    close();
  }

  void prepare(Direction direction, size_t slot) {
    const Piece& piece = pieces_[slot];
    // Never null: the ring has as many entries as there are pieces.
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    const auto count = static_cast<unsigned>(piece.bytes);
    const auto offset = static_cast<uint64_t>(piece.offset);
    if (direction == Direction::kRead) {
      ::io_uring_prep_read(entry, fd_, piece.memory, count, offset);
    } else {
      ::io_uring_prep_write(entry, fd_, piece.memory, count, offset);
    }
    ::io_uring_sqe_set_data64(entry, slot);
  }

  void reap(Direction direction, std::vector<size_t>& idle, int& error) {
    io_uring_cqe* completion = nullptr;
    while (::io_uring_peek_cqe(&ring_, &completion) == 0) {
      const auto slot = static_cast<size_t>(::io_uring_cqe_get_data64(completion));
      const int result = completion->res;
      ::io_uring_cqe_seen(&ring_, completion);
      --in_flight_;
      Piece& piece = pieces_[slot];
      if (result == -EINTR || result == -EAGAIN) {
        prepare(direction, slot);
        continue;
      }
      if (result <= 0) {
        if (error == 0) error = result < 0 ? -result : ENODATA;
        idle.push_back(slot);
        continue;
      }
      piece = {piece.memory + result, piece.offset + result, piece.bytes - result};
      if (piece.bytes > 0) {
        prepare(direction, slot);
      } else {
        idle.push_back(slot);
      }
    }
  }

  const int fd_;
  const BlockIoOptions options_;
  io_uring ring_{};
  bool is_open_ = false;
  int in_flight_ = 0;          // pieces that the kernel has accepted
  std::vector<Piece> pieces_;  // by slot
};

constexpr mode_t kOwnerOnly = 0600;

[[noreturn]] void fail_create(const std::filesystem::path& folder, const std::string& what) {
  throw ConfigError(
      "offload", fmt::format("a file for offloaded state cannot be made in '{}': {}", folder.string(), what));
}

// Where the file system lacks O_TMPFILE, creates a named file and unlinks it.
int open_unnamed(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kOwnerOnly);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  std::string name = folder / ".lockstep-offload-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

std::unique_ptr<BlockIo> make_uring_io(int fd, const BlockIoOptions& options, int& error) {
  auto io = std::make_unique<UringIo>(fd, options, error);
  if (error != 0) return nullptr;
  return io;
}

std::unique_ptr<BlockIo> make_plain_io(int fd, const BlockIoOptions& options) {
  return std::make_unique<PlainIo>(fd, options);
}

AsyncFile::AsyncFile(const std::filesystem::path& folder, int64_t bytes, const BlockIoOptions& options)
    : folder_(folder), bytes_(bytes) {
  check_eq(bytes % kAlignment, int64_t{0}, "the size of an offload file is not a multiple of its blocks");
  open(bytes);
  make_io(options);
  worker_ = std::thread([this] { run(); });
}

AsyncFile::~AsyncFile() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void AsyncFile::open(int64_t bytes) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder_, ignored)) {
    fail_create(folder_,
                "it is not a folder; make it, or set nvme_path to one that every rank of this host has");
  }
  fd_.reset(open_unnamed(folder_));
  if (!fd_) fail_create(folder_, std::strerror(errno));
  reserve(bytes);
  is_direct_ = ::fcntl(fd_.get(), F_SETFL, O_DIRECT) == 0;
  if (!is_direct_) {
    log_info("offload",
             "the file system of '{}' does not support O_DIRECT: offloaded state goes through the page cache",
             folder_.string());
  }
}

void AsyncFile::reserve(int64_t bytes) {
  if (bytes == 0) return;
  // On a file system that cannot reserve blocks, the C library writes them.
  const int error = ::posix_fallocate(fd_.get(), 0, bytes);
  if (error == 0) return;
  struct statvfs state {};
  const bool known = ::fstatvfs(fd_.get(), &state) == 0;
  const uint64_t left = known ? static_cast<uint64_t>(state.f_bavail) * state.f_frsize : 0;
  fail_create(folder_, fmt::format("this rank needs {} bytes, and {} are free: {}", bytes, left,
                                   std::strerror(error)));
}

void AsyncFile::make_io(const BlockIoOptions& options) {
  int error = 0;
  io_ = make_uring_io(fd_.get(), options, error);
  uses_uring_ = io_ != nullptr;
  if (uses_uring_) return;
  log_warning("offload",
              "io_uring is not available here ({}): offloaded state is read and written one block at a time; "
              "allow it in the container's seccomp profile, or set "
              "/proc/sys/kernel/io_uring_disabled to 0",
              std::strerror(error));
  io_ = make_plain_io(fd_.get(), options);
}

AsyncFile::Ticket AsyncFile::read(void* memory, int64_t offset, int64_t bytes) {
  return start({0, BlockIo::Direction::kRead, memory, offset, bytes});
}

AsyncFile::Ticket AsyncFile::write(const void* memory, int64_t offset, int64_t bytes) {
  return start({0, BlockIo::Direction::kWrite, const_cast<void*>(memory), offset, bytes});
}

AsyncFile::Ticket AsyncFile::start(Request request) {
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(request.memory));
  check_eq((address | request.offset | request.bytes) % kAlignment, int64_t{0},
           "a transfer is not made of whole blocks");
  check(request.offset >= 0 && request.offset + request.bytes <= bytes_, "a transfer is outside of the file");
  {
    const MutexLock lock(mutex_);
    request.ticket = ++last_started_;
    queue_.push_back(request);
  }
  changed_.notify_all();
  return request.ticket;
}

void AsyncFile::wait(Ticket ticket) {
  MutexLock lock(mutex_);
  while (last_done_ < ticket) changed_.wait(lock);
  const auto failure = failures_.find(ticket);
  if (failure != failures_.end()) throw InternalError("offload", failure->second);
}

void AsyncFile::run() {
  MutexLock lock(mutex_);
  while (true) {
    while (!is_stopping_ && queue_.empty()) changed_.wait(lock);
    if (queue_.empty()) return;
    const Request request = queue_.front();
    queue_.pop_front();
    lock.unlock();
    const int error = io_->move(request.direction, request.memory, request.offset, request.bytes);
    lock.lock();
    if (error != 0) {
      const bool is_read = request.direction == BlockIo::Direction::kRead;
      failures_.emplace(
          request.ticket,
          fmt::format("offloaded state cannot be {} '{}': {} bytes at {}: {}",
                      is_read ? "read from" : "written to", folder_.string(), request.bytes, request.offset,
                      error == ENODATA ? "the file ends before them" : std::strerror(error)));
    }
    last_done_ = request.ticket;
    changed_.notify_all();
  }
}

}  // namespace lockstep::base
