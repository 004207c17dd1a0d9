#pragma once

// HDF5 files, made by their library.

#include <hdf5.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::test {

class Hdf5Writer {
 public:
  // is_latest: in the newest version of the format that the library knows.
  explicit Hdf5Writer(const std::filesystem::path& path, hsize_t user_block = 0, bool is_latest = false) {
    const hid_t made = H5Pcreate(H5P_FILE_CREATE), access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_userblock(made, user_block);
    if (is_latest) H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    file_ = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, made, access);
    H5Pclose(made);
    H5Pclose(access);
    if (file_ < 0) throw std::runtime_error("H5Fcreate");
  }
  ~Hdf5Writer() { H5Fclose(file_); }
  Hdf5Writer(const Hdf5Writer&) = delete;
  Hdf5Writer& operator=(const Hdf5Writer&) = delete;

  hid_t file() const { return file_; }

  // chunk: empty is one piece; deflate: 0 is none. Null data: nothing is written.
  void add(const char* name, hid_t type, const std::vector<hsize_t>& shape, const void* data,
           const std::vector<hsize_t>& chunk = {}, unsigned deflate = 0) {
    const hid_t made = H5Pcreate(H5P_DATASET_CREATE);
    if (!chunk.empty()) H5Pset_chunk(made, static_cast<int>(chunk.size()), chunk.data());
    if (deflate > 0) H5Pset_deflate(made, deflate);
    add_made(name, type, shape, data, made, chunk);
    H5Pclose(made);
  }

  // With a list of properties. A dimension that is smaller than its chunk may grow.
  void add_made(const char* name, hid_t type, const std::vector<hsize_t>& shape, const void* data, hid_t made,
                const std::vector<hsize_t>& chunk = {}) {
    std::vector<hsize_t> most = shape;
    for (size_t i = 0; i < chunk.size(); ++i) {
      if (chunk[i] > shape[i]) most[i] = H5S_UNLIMITED;
    }
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), most.data());
    const hid_t dataset = H5Dcreate2(file_, name, type, space, H5P_DEFAULT, made, H5P_DEFAULT);
    if (dataset < 0 ||
        (data != nullptr && H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)) {
      throw std::runtime_error("H5Dwrite");
    }
    H5Dclose(dataset);
    H5Sclose(space);
  }

 private:
  hid_t file_;
};

}  // namespace lockstep::test
