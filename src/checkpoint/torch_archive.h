#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "checkpoint/pickle.h"

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace lockstep::checkpoint {

// Zip archives as torch.save and torch.jit.save write them.

// --- reading ---

// Whether the file begins as a zip archive.
bool is_zip(const base::InputFile& file);

// The following functions throw PickleError.

// A reader of LibTorch's for the file, which the reader shares.
std::unique_ptr<caffe2::serialize::PyTorchStreamReader> open_zip(std::shared_ptr<const base::InputFile> file);

// The content of a record of at most `limit` bytes.
std::string read_record(caffe2::serialize::PyTorchStreamReader& archive, const std::string& name,
                        size_t limit);
// The record data.pkl, which torch.save writes.
std::string read_data_pickle(caffe2::serialize::PyTorchStreamReader& archive, size_t file_bytes);
bool is_big_endian(caffe2::serialize::PyTorchStreamReader& archive, size_t file_bytes);

// Where in the file the content of a record lies, which is not compressed.
struct RecordPlace {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
// Throws PickleError if the record is compressed or reaches beyond the end of the file, c10::Error if there
// is none.
RecordPlace place_of_record(caffe2::serialize::PyTorchStreamReader& archive, const base::InputFile& file,
                            const std::string& name);

// How many bytes from the begin of its storage a tensor needs, and how many it would have if it were
// contiguous.
struct TensorExtent {
  uint64_t reach = 0;
  uint64_t bytes = 0;
};
// nullopt: more than 64 bits can hold.
std::optional<TensorExtent> extent_of(const TensorReference& tensor);

// An open file of Python's torch.save. The constructor parses its pickle; tensors are read on request,
// completely or in part, so the file may be larger than the memory. Objects of unknown classes are
// Opaque values with their names; no code of the file is executed.
//
// ConfigError names the file and the reason. Not thread-safe: one thread at a time.
class TorchArchive {
 public:
  explicit TorchArchive(std::filesystem::path path);
  ~TorchArchive();
  TorchArchive(TorchArchive&&) noexcept;
  TorchArchive& operator=(TorchArchive&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  ValueRef root() const { return pickle_.root; }

  // ConfigError unless the tensor lies within its storage and in the file. Reads nothing.
  void check(const TensorReference& tensor) const;
  // A new, contiguous tensor in host memory.
  at::Tensor read(const TensorReference& tensor) const;
  // Reads elements [first, first + out.numel()) of a contiguous tensor into `out`, which must be
  // contiguous, in host memory and of the same dtype.
  void read(const TensorReference& tensor, int64_t first, const at::Tensor& out) const;

  // Throws ConfigError "cannot read 'FILE': reason".
  [[noreturn]] void fail(const std::string& reason) const;

 private:
  struct Records;
  using Place = RecordPlace;
  Place place(const std::string& key) const;
  // From the first byte of the tensor to its last.
  Place span(const TensorReference& tensor) const;
  void read_bytes(uint64_t offset, void* to, size_t bytes) const;

  std::filesystem::path path_;
  std::shared_ptr<const base::InputFile> file_;
  std::unique_ptr<Records> records_;
  Pickle pickle_;
};

// --- writing ---

// Where LibTorch's archive writers write to. Returns how many bytes were written.
using ArchiveOutput = std::function<size_t(const void* data, size_t bytes)>;

// Publishes the archive that `write` makes, as base::publish_file does. ConfigError: it cannot be
// written.
void publish_archive(const std::filesystem::path& path,
                     const std::function<void(const ArchiveOutput&)>& write);

}  // namespace lockstep::checkpoint
