#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <unordered_map>

#include "interop/file_bytes.h"
#include "interop/pickle_value.h"

namespace lockstep::interop {

// A file of Python's torch.save that stays open: what it describes is known at once, and
// tensors are read when they are asked for, in whole or in part. So files larger than the
// memory can be gone through. Classes that are not known here are Opaque values with their
// names; nothing of the file is executed.
//
// ConfigError names the file and what is wrong with it. One thread at a time.
class TorchArchive {
 public:
  explicit TorchArchive(std::filesystem::path path);
  ~TorchArchive();
  TorchArchive(TorchArchive&&) noexcept;
  TorchArchive& operator=(TorchArchive&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  ValueRef root() const { return pickle_.root; }

  // ConfigError unless the tensor lies within its storage and in the file. Nothing is read.
  void check(const TensorReference& tensor) const;
  // A new, contiguous tensor in host memory.
  at::Tensor read(const TensorReference& tensor) const;
  // Elements [first, first + out.numel()) of a contiguous tensor into `out`, which is
  // contiguous, in host memory and of the same dtype.
  void read(const TensorReference& tensor, int64_t first, const at::Tensor& out) const;

  // "cannot read 'FILE': " and the reason.
  [[noreturn]] void fail(const std::string& reason) const;

 private:
  struct Records;
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  Place place(const std::string& key) const;
  // Of the first byte of the tensor, and how many it spans.
  Place span(const TensorReference& tensor) const;
  void read_bytes(uint64_t offset, void* to, size_t bytes) const;

  std::filesystem::path path_;
  std::shared_ptr<FileBytes> file_;
  std::unique_ptr<Records> records_;
  Pickle pickle_;
};

}  // namespace lockstep::interop
