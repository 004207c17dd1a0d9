#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "images/byte_cursor.h"

namespace lockstep::images {

// The parts of HDF5 that lead from a file to its datasets, as h5py and the library write
// them by default. Our own and not the library: that one ends the process on hostile files,
// takes one thread at a time, and says no byte. What we do not read is an error that says
// how to write the file anew. Everything is checked against the bytes of the file.

// What the addresses of a file count from when nothing is there.
inline constexpr uint64_t kNoAddress = UINT64_MAX;

struct Hdf5Message {
  uint16_t type = 0;
  uint64_t begin = 0;  // of its content in the file
  uint64_t end = 0;
};

namespace hdf5 {
inline constexpr uint16_t kDataspace = 0x01, kLinkInfo = 0x02, kDatatype = 0x03, kLink = 0x06,
                          kExternal = 0x07, kLayout = 0x08, kFilters = 0x0b, kContinuation = 0x10,
                          kSymbolTable = 0x11;
}

class Hdf5File {
 public:
  // Both outlive it. ConfigError: no HDF5 file, cut, or of a version that we do not read.
  Hdf5File(std::span<const uint8_t> bytes, const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return bytes_.size(); }
  // Where an address of the file points; ConfigError: outside of it.
  ByteCursor at(uint64_t address) const;
  ByteCursor content(const Hdf5Message& message) const { return {bytes_, path_, message.begin, message.end}; }
  uint64_t base() const { return base_; }

  // The messages of an object's header, all blocks of it.
  std::vector<Hdf5Message> messages(uint64_t object) const;
  // The address of an object in the root group by its name. ConfigError: not there, or a link.
  uint64_t find(std::string_view name) const;

 private:
  void read_superblock(ByteCursor cursor);

  std::span<const uint8_t> bytes_;
  const std::filesystem::path& path_;
  uint64_t base_ = 0;
  uint64_t root_ = 0;
};

// The sentence for what is valid HDF5 and not read here.
inline constexpr char kRepack[] = "write the file anew with: h5repack -l CONTI -f NONE OLD NEW";

}  // namespace lockstep::images
