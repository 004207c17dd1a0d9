#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::images {

// The HDF5 library is not safe with threads, not even on different files: whoever calls it
// holds this lock.
std::mutex& hdf5_lock();

// One dataset of a file that is open for reading. Everything it does, its end too, takes
// the lock by itself. ConfigError names the file, the dataset and what the library says.
class Hdf5Dataset {
 public:
  enum class Element { kByte, kInteger, kOther };

  // The dataset lies in the file itself: links to other files, datasets made of others and
  // data in other files are refused, chunks of more than 256 MiB too.
  Hdf5Dataset(const std::filesystem::path& path, const std::string& name);
  ~Hdf5Dataset();
  Hdf5Dataset(const Hdf5Dataset&) = delete;
  Hdf5Dataset& operator=(const Hdf5Dataset&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::string& name() const { return name_; }
  Element element() const { return element_; }  // kByte is unsigned
  const std::vector<int64_t>& shape() const { return shape_; }
  // Where the elements lie in the file as they are, one after the other; nullopt where
  // they are in chunks, compressed or not there.
  std::optional<int64_t> file_offset() const { return file_offset_; }

  // Bytes of the dataset's part that begins at `first` and ends before `first + count` in
  // its first dimension.
  void read_bytes(int64_t first, int64_t count, uint8_t* to) const;
  // All of a dataset of integers.
  std::vector<int64_t> read_integers() const;

 private:
  struct Handles;

  void open();
  void inspect();

  std::filesystem::path path_;
  std::string name_;
  std::unique_ptr<Handles> handles_;
  Element element_ = Element::kOther;
  std::vector<int64_t> shape_;
  std::optional<int64_t> file_offset_;
};

}  // namespace lockstep::images
