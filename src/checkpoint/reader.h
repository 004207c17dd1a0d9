#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "base/file.h"
#include "base/mutex.h"
#include "checkpoint/manifest.h"

namespace lockstep::checkpoint {

// The destination of elements of a tensor.
struct Target {
  std::string name;
  // Receives elements [first_element, first_element + out.numel()) in row-major order. Must have the
  // saved dtype. Contiguous host memory is read into directly, other memory through a copy.
  at::Tensor out;
  int64_t first_element = 0;
};

// An open checkpoint. Reads only the elements that are asked for; a piece that is read completely is
// compared with its checksum in the same pass. Threads may read at the same time.
//
// CheckpointError: the files are truncated, changed or missing. ConfigError: there is no tensor of
// this name, or `out` does not fit.
class Reader {
 public:
  // Reads the manifest and compares the sizes of the files with it. An index file is read when one of
  // its tensors is first read.
  explicit Reader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  // If there are index files, the pieces of tensors that were not read may be missing.
  const Manifest& manifest() const { return manifest_; }
  const Json& metadata() const { return manifest_.metadata; }
  int64_t step() const { return manifest_.step; }
  std::vector<std::string> names() const;
  bool has(const std::string& name) const;
  // ConfigError: no such tensor. Its pieces may still be in an index file.
  const TensorEntry& entry(const std::string& name) const;

  // A new tensor in host memory.
  at::Tensor read(const std::string& name) const;
  void read_range(const std::string& name, int64_t first, int64_t count, const at::Tensor& out) const;
  // Reads all targets with `threads` threads; 0: one for each CPU of the process, 8 at most.
  void read(const std::vector<Target>& targets, int threads = 0) const;

  // Reads every byte: compares all checksums, and the header of each file with the manifest.
  void verify(int threads = 0) const;

  // Bytes of tensors and manifest that were read until now.
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  struct PieceRead;

  base::InputFile open_file(size_t index) const;
  void add_reads(const Target& target, const TensorEntry& saved, char* to,
                 std::vector<PieceRead>& reads) const;
  static void sort_by_place(std::vector<PieceRead>& reads);
  void read_piece(const PieceRead& read) const;
  const std::vector<Piece>& pieces_of(const TensorEntry& saved) const;
  void load_index(size_t index) const;
  // Bytes of a file: begin, end, and their dtype.
  using Extent = std::tuple<int64_t, int64_t, at::ScalarType>;
  void check_header(size_t index, std::vector<Extent> expected) const;

  std::filesystem::path folder_;
  // Pieces are added when their index file is read, under index_mutex_, before a thread uses them.
  mutable Manifest manifest_;
  mutable base::Mutex index_mutex_;
  mutable std::vector<bool> has_index_ LOCKSTEP_GUARDED_BY(index_mutex_);  // of manifest_.indices
  mutable std::atomic<int64_t> bytes_read_{0};
};

}  // namespace lockstep::checkpoint
