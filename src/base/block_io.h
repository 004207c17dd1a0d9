#pragma once

#include <cstdint>
#include <memory>

namespace lockstep::base {

// Moves long runs of bytes between memory and an open file in blocks, several at a time.
// One thread at a time.
class BlockIo {
 public:
  enum class Direction { kRead, kWrite };

  virtual ~BlockIo() = default;
  // Blocks until all bytes are moved. Returns 0, or an errno; ENODATA: the file ended.
  virtual int move(Direction direction, void* memory, int64_t offset, int64_t bytes) = 0;
};

struct BlockIoOptions {
  int64_t block_bytes = 1 << 20;
  int queue_depth = 8;
};

// With io_uring. Null: the kernel does not allow it here; `error` gets the errno.
std::unique_ptr<BlockIo> make_uring_io(int fd, const BlockIoOptions& options, int& error);
// With pread and pwrite, one block at a time.
std::unique_ptr<BlockIo> make_plain_io(int fd, const BlockIoOptions& options);

}  // namespace lockstep::base
