#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/offload.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/async_file.h"

namespace lockstep::shard {

// Tensors of all buckets, masters and what the optimizer keeps of them, in one file of this
// rank. They have memory only while their bucket is open: outside of that nobody may read
// them, kernels do not look.
//
// One thread at a time. A transfer that fails is an InternalError of a later call.
class NvmeStates {
 public:
  // The i-th bucket has up to max_tensors[i] tensors of tensor_bytes[i] each. Makes the
  // file: ConfigError as AsyncFile.
  NvmeStates(const OffloadOptimizer& options, const Aio& aio, const std::vector<int64_t>& tensor_bytes,
             const std::vector<int64_t>& max_tensors);
  ~NvmeStates();

  // Starts to read what will be opened next, where a buffer is free and pipeline_read is on.
  void prefetch(size_t bucket);
  // Gives the bucket's tensors memory with what was stored.
  void open(size_t bucket);
  // The bucket has these tensors from now on, which may have memory of their own: stores
  // them, and takes their memory away. Opens the bucket where it is not.
  void store(size_t bucket, const std::vector<at::Tensor>& tensors);
  // Takes the memory away; what was written is lost.
  void discard(size_t bucket);

  // What is stored of one of the bucket's tensors, elements [first, first + count), in memory of
  // its own. Several threads may ask at a time, if none calls anything else.
  at::Tensor copy_of(size_t bucket, const at::Tensor& tensor, int64_t first, int64_t count);

  // Waits for all writes.
  void settle();

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
    std::optional<size_t> bucket;  // whose it is
    bool is_open = false;
    base::AsyncFile::Ticket read = 0;
  };

  Buffer* find(size_t bucket);
  Buffer* take_free(size_t bucket);
  // A buffer that holds the bucket, or will.
  Buffer& fetch(size_t bucket);
  char* place(const Buffer& buffer, const Bucket& bucket, size_t tensor) const;

  const OffloadOptimizer options_;
  std::vector<Bucket> buckets_;
  std::vector<Buffer> buffers_;
  std::vector<base::AsyncFile::Ticket> writes_;  // that nobody has waited for
  std::mutex copy_mutex_;
  std::unique_ptr<base::AsyncFile> file_;  // the last: its thread uses the buffers
};

}  // namespace lockstep::shard
