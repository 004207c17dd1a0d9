#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/input_file.h"
#include "checkpoint/manifest.h"

namespace lockstep::checkpoint {

// Where elements of a tensor go.
struct Target {
  std::string name;
  // Takes elements [first_element, first_element + out.numel()) in row-major order; has
  // the saved dtype. Host memory that is contiguous is read into directly, anything
  // else through a copy.
  at::Tensor out;
  int64_t first_element = 0;
};

// An open checkpoint. Reads only what is asked for; a piece that is read as a whole is
// compared with its checksum in the same pass. All reads may run in several threads.
//
// Errors: CheckpointError when the files are cut, changed or missing; ConfigError when a
// name is not there or `out` does not fit.
class Reader {
 public:
  // Reads the manifest and compares the sizes of the files with it. Index files are read when
  // a tensor of theirs is.
  explicit Reader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  // Of a divided manifest without the pieces.
  const Manifest& manifest() const { return manifest_; }
  const Json& metadata() const { return manifest_.metadata; }
  int64_t step() const { return manifest_.step; }
  std::vector<std::string> names() const;
  bool has(const std::string& name) const;
  // ConfigError when there is no such tensor. Its pieces may be in an index file.
  const TensorEntry& entry(const std::string& name) const;

  // A new host tensor.
  at::Tensor read(const std::string& name) const;
  void read_range(const std::string& name, int64_t first, int64_t count, const at::Tensor& out) const;
  // All of them, over `threads` threads; 0: one for each CPU of the process, 8 at most.
  void read(const std::vector<Target>& targets, int threads = 0) const;

  // Reads every byte and compares: all checksums, and the header of each file with the
  // manifest.
  void verify(int threads = 0) const;

  // Of tensor data and the manifest, until now.
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  struct PieceRead;

  InputFile open_file(size_t index) const;
  void add_reads(const Target& target, const TensorEntry& saved, char* to,
                 std::vector<PieceRead>& reads) const;
  static void sort_by_place(std::vector<PieceRead>& reads);
  void read_piece(const PieceRead& read) const;
  const std::vector<Piece>& pieces_of(const TensorEntry& saved) const;
  void load_index(size_t index) const;
  // A part of a file: where it begins, where it ends, and its dtype.
  using Extent = std::tuple<int64_t, int64_t, at::ScalarType>;
  void check_header(size_t index, std::vector<Extent> expected) const;

  std::filesystem::path folder_;
  mutable Manifest manifest_;  // pieces come with their index
  mutable std::mutex index_mutex_;
  mutable std::vector<bool> has_index_;  // under index_mutex_: of manifest_.indices
  mutable std::atomic<int64_t> bytes_read_{0};
};

}  // namespace lockstep::checkpoint
