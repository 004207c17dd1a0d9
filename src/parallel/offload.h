#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <lockstep/communicator.h>
#include <lockstep/zero.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/async_file.h"
#include "base/mutex.h"

namespace lockstep::parallel {

// Copies between a device and host memory that run beside the computation, on a separate stream. With
// the CPU as the device they are plain copies, done when copy() returns.
//
// One thread at a time.
class CopyLane {
 public:
  explicit CopyLane(c10::Device device);

  // The end of a copy. A default-constructed one has passed.
  class Mark {
   public:
    // The current stream waits; this thread does not.
    void wait_on_device() const;
    // This thread waits.
    void wait() const;

   private:
    friend class CopyLane;
    std::shared_ptr<c10::Event> event_;
    std::optional<c10::Device> device_;
  };

  // Starts after the work that the current stream has now. Wait for the mark before changing `from` or
  // reading `to`; device memory may be freed at once.
  Mark copy(const at::Tensor& to, const at::Tensor& from);
  // Waits for all copies.
  void finish();

  bool is_plain() const { return !stream_; }

 private:
  Mark mark() const;
  void follow_current() const;

  const c10::Device device_;
  std::optional<c10::Stream> stream_;
};

// A gather of parameters in flight.
struct Gather {
  Work work = {};
  CopyLane::Mark copy = {};
  // The current stream waits; on a CPU this thread does.
  void wait() {
    work.wait();
    copy.wait_on_device();
  }
};

// Flat tensors in host memory that live as long as a model.
//
// LibTorch rounds every page-locked allocation up to a power of two, so that page-locked tensors share
// a few large allocations here.
class HostMemory {
 public:
  // `expected_bytes`: about the total of all allocations.
  HostMemory(bool pinned, int64_t expected_bytes) : pinned_(pinned), expected_bytes_(expected_bytes) {}

  // Aligned to 64 bytes; the content is undefined. ConfigError: there is no page-locked
  // memory left.
  at::Tensor allocate(int64_t numel, c10::ScalarType dtype);

 private:
  at::Tensor allocate_bytes(int64_t bytes) const;

  const bool pinned_;
  int64_t expected_bytes_;  // of later allocations
  at::Tensor slab_;
  int64_t used_bytes_ = 0;  // of the slab
};

// The masters of all buckets and their optimizer state, in one file of this rank. Tensors have memory
// only while their bucket is open; reading them at other times is an error that kernels do not detect.
//
// One thread at a time. A transfer that fails is an InternalError of a later call.
class NvmeStates {
 public:
  // The i-th bucket has up to max_tensors[i] tensors of tensor_bytes[i] each. Makes the
  // file: ConfigError as AsyncFile.
  NvmeStates(const OffloadOptimizer& options, const Aio& aio, const std::vector<int64_t>& tensor_bytes,
             const std::vector<int64_t>& max_tensors);
  ~NvmeStates();

  // Starts to read a bucket that will be opened next, if a buffer is free and pipeline_read is on.
  void prefetch(size_t bucket);
  // Gives the bucket's tensors memory with their stored values.
  void open(size_t bucket);
  // Stores these tensors as the bucket's and frees their memory. Opens the bucket if it is not open.
  void store(size_t bucket, const std::vector<at::Tensor>& tensors);
  // Closes the bucket; values that were written since open() are lost.
  void discard(size_t bucket);

  // A copy of elements [first, first + count) of one of the bucket's stored tensors. Several threads may
  // call it at a time, if none calls another function.
  at::Tensor copy_of(size_t bucket, const at::Tensor& tensor, int64_t first, int64_t count);

  // Waits for all writes.
  void finish_writes();

  int64_t buffer_bytes() const;

 private:
  struct Bucket {
    int64_t offset = 0;        // in the file
    int64_t stride_bytes = 0;  // from one tensor to the next
    int64_t max_tensors = 0;
    std::vector<at::Tensor> tensors;  // those that are stored
  };
  // Memory for one bucket.
  struct Buffer {
    at::Tensor bytes;
    std::optional<size_t> bucket;  // that it holds
    bool is_open = false;
    base::AsyncFile::Ticket read = 0;
  };

  Buffer* find(size_t bucket);
  Buffer* take_free(size_t bucket);
  // A buffer that holds the bucket, or that it is being read into.
  Buffer& fetch(size_t bucket);
  char* place(const Buffer& buffer, const Bucket& bucket, size_t tensor) const;

  const OffloadOptimizer options_;
  std::vector<Bucket> buckets_;
  std::vector<Buffer> buffers_;
  std::vector<base::AsyncFile::Ticket> writes_;  // not waited for yet
  base::Mutex copy_mutex_;                       // one reader of the file at a time in copy_of()
  std::unique_ptr<base::AsyncFile> file_;        // last member: its thread uses the buffers
};

}  // namespace lockstep::parallel
