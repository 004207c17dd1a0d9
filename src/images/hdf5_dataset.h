#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "images/hdf5_file.h"
#include "images/tensor_layout.h"

namespace lockstep::images {

// Where the elements of a dataset lie in its file.
struct Hdf5Dataset {
  struct Chunk {
    uint64_t begin = 0;    // in the file
    uint64_t bytes = 0;    // 0: not there
    uint32_t skipped = 0;  // filters, a bit each, that were not used on it
  };

  std::string name;
  std::vector<int64_t> shape;
  IntegerType type;
  // In one piece: where it begins, already known to end within the file.
  std::optional<uint64_t> begin;
  // Else in chunks: their shape, and all of them, the last dimension fastest.
  std::vector<int64_t> chunk_shape;
  std::vector<Chunk> chunks;
  std::vector<uint16_t> filters;  // in the order in which they were used

  int64_t elements() const;
  int64_t chunk_bytes() const;
};

inline constexpr uint16_t kDeflate = 1, kShuffle = 2, kFletcher32 = 3;

// ConfigError: not a dataset of integers of 1 to 8 dimensions that is there in full, in the
// file itself, with filters among the three.
Hdf5Dataset read_dataset(const Hdf5File& file, const std::string& name);

// The elements of a dataset in chunks, unpacked and put together.
SharedBytes unpack_chunks(const Hdf5File& file, const Hdf5Dataset& dataset);

}  // namespace lockstep::images
