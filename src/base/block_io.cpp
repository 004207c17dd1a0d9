#include "base/block_io.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace lockstep::base {

namespace {

// What is left of one block.
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
      // After an error as well: the kernel has our memory until all is done.
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

  // When the kernel takes no more: waits for what it has, whose memory is the caller's, and drops
  // what it has not taken, which a later call would submit.
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
    // There is an entry: no more pieces are on their way than the ring has.
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
  int in_flight_ = 0;          // pieces that the kernel has
  std::vector<Piece> pieces_;  // on their way, by slot
};

}  // namespace

std::unique_ptr<BlockIo> make_uring_io(int fd, const BlockIoOptions& options, int& error) {
  auto io = std::make_unique<UringIo>(fd, options, error);
  if (error != 0) return nullptr;
  return io;
}

std::unique_ptr<BlockIo> make_plain_io(int fd, const BlockIoOptions& options) {
  return std::make_unique<PlainIo>(fd, options);
}

}  // namespace lockstep::base
