#include "images/hdf5_file.h"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <utility>

#include "images/tensor_layout.h"

namespace lockstep::images {
namespace {

constexpr int64_t kMaxChunkBytes = int64_t{256} << 20;
constexpr int kMaxDimensions = 8;
constexpr size_t kCacheChunks = 4, kCacheSlots = 521;

// A handle of the library; whoever ends it holds the lock.
class Handle {
 public:
  Handle() = default;
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }

  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

// The library prints its errors unless it is told not to.
class QuietErrors {
 public:
  QuietErrors() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~QuietErrors() {
    H5Eclear2(H5E_DEFAULT);
    H5Eset_auto2(H5E_DEFAULT, function_, data_);
  }
  QuietErrors(const QuietErrors&) = delete;
  QuietErrors& operator=(const QuietErrors&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

herr_t keep_text(unsigned /*place*/, const H5E_error2_t* error, void* text) {
  if (error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
  return 0;
}

// What the library says last, at the bottom of its error: the cause.
std::string cause() {
  std::string text = "the HDF5 library gives no reason";
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, keep_text, &text);
  return text;
}

}  // namespace

struct Hdf5Dataset::Handles {
  Handle file, dataset, type, space;
};

std::mutex& hdf5_lock() {
  static std::mutex lock;
  return lock;
}

Hdf5Dataset::Hdf5Dataset(const std::filesystem::path& path, const std::string& name)
    : path_(path), name_(name) {
  const std::lock_guard lock(hdf5_lock());
  const QuietErrors quiet;
  auto handles = std::make_unique<Handles>();
  handles_.swap(handles);
  try {
    open();
    inspect();
  } catch (...) {
    handles_.reset();  // under the lock
    throw;
  }
}

Hdf5Dataset::~Hdf5Dataset() {
  const std::lock_guard lock(hdf5_lock());
  const QuietErrors quiet;
  handles_.reset();
}

void Hdf5Dataset::open() {
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
#if H5_VERSION_GE(1, 10, 7)
  // Readers need no lock, and a parallel file system may have none.
  H5Pset_file_locking(access.get(), false, true);
#endif
  const TensorPlace place{path_, name_};
  handles_->file = Handle(H5Fopen(path_.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!handles_->file) fail_tensor(place, fmt::format("no HDF5 file, or broken: {}", cause()));
  H5L_info_t link{};
  if (H5Lexists(handles_->file.get(), name_.c_str(), H5P_DEFAULT) <= 0 ||
      H5Lget_info(handles_->file.get(), name_.c_str(), &link, H5P_DEFAULT) < 0) {
    fail_tensor(place, "the file has no dataset of this name");
  }
  if (link.type != H5L_TYPE_HARD) fail_tensor(place, "a link, not a dataset of this file");
  handles_->dataset = Handle(H5Dopen2(handles_->file.get(), name_.c_str(), H5P_DEFAULT), H5Dclose);
  if (!handles_->dataset) fail_tensor(place, fmt::format("not a dataset, or broken: {}", cause()));
}

void Hdf5Dataset::inspect() {
  const TensorPlace place{path_, name_};
  const hid_t dataset = handles_->dataset.get();
  handles_->type = Handle(H5Dget_type(dataset), H5Tclose);
  handles_->space = Handle(H5Dget_space(dataset), H5Sclose);
  const Handle made(H5Dget_create_plist(dataset), H5Pclose);
  if (!handles_->type || !handles_->space || !made) fail_tensor(place, fmt::format("broken: {}", cause()));

  const hid_t type = handles_->type.get();
  const size_t element_bytes = H5Tget_size(type);
  if (H5Tget_class(type) == H5T_INTEGER && element_bytes >= 1 && element_bytes <= 8) {
    element_ = element_bytes == 1 && H5Tget_sign(type) == H5T_SGN_NONE ? Element::kByte : Element::kInteger;
  }
  const int rank = H5Sget_simple_extent_type(handles_->space.get()) == H5S_SIMPLE
                       ? H5Sget_simple_extent_ndims(handles_->space.get())
                       : 0;
  if (rank < 1 || rank > kMaxDimensions) fail_tensor(place, "not 1 to 8 dimensions");
  hsize_t sizes[kMaxDimensions] = {};
  H5Sget_simple_extent_dims(handles_->space.get(), sizes, nullptr);
  for (int i = 0; i < rank; ++i) {
    if (sizes[i] > INT64_MAX) fail_tensor(place, fmt::format("a dimension of {}", sizes[i]));
    shape_.push_back(static_cast<int64_t>(sizes[i]));
  }

  const H5D_layout_t layout = H5Pget_layout(made.get());
  if (H5Pget_external_count(made.get()) != 0) fail_tensor(place, "its data is in other files");
  if (layout == H5D_CHUNKED) {
    hsize_t chunk[kMaxDimensions] = {};
    if (H5Pget_chunk(made.get(), kMaxDimensions, chunk) != rank) fail_tensor(place, "chunks of another rank");
    auto bytes = static_cast<int64_t>(element_bytes);
    for (int i = 0; i < rank; ++i) {
      if (chunk[i] < 1 || chunk[i] > static_cast<hsize_t>(kMaxChunkBytes / bytes)) {
        fail_tensor(place,
                    fmt::format("chunks of more than {} bytes: write it in smaller ones", kMaxChunkBytes));
      }
      bytes *= static_cast<int64_t>(chunk[i]);
    }
    // The default holds one MiB; a larger chunk would be unpacked again for each image.
    const Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
    const size_t cache = std::min<size_t>(kCacheChunks * static_cast<size_t>(bytes), kMaxChunkBytes);
    H5Pset_chunk_cache(access.get(), kCacheSlots, std::max<size_t>(cache, 1 << 20), 1.0);
    handles_->dataset = Handle(H5Dopen2(handles_->file.get(), name_.c_str(), access.get()), H5Dclose);
    if (!handles_->dataset) fail_tensor(place, fmt::format("broken: {}", cause()));
  } else if (layout == H5D_CONTIGUOUS) {
    const haddr_t offset = H5Dget_offset(dataset);
    if (offset != HADDR_UNDEF && offset <= INT64_MAX) file_offset_ = static_cast<int64_t>(offset);
  } else if (layout != H5D_COMPACT) {
    fail_tensor(place, "made of other datasets: write its data into one");
  }
}

void Hdf5Dataset::read_bytes(int64_t first, int64_t count, uint8_t* to) const {
  const std::lock_guard lock(hdf5_lock());
  const QuietErrors quiet;
  hsize_t start[kMaxDimensions] = {static_cast<hsize_t>(first)};
  hsize_t sizes[kMaxDimensions] = {};
  std::copy(shape_.begin(), shape_.end(), sizes);
  sizes[0] = static_cast<hsize_t>(count);
  const Handle memory(H5Screate_simple(static_cast<int>(shape_.size()), sizes, nullptr), H5Sclose);
  if (!memory ||
      H5Sselect_hyperslab(handles_->space.get(), H5S_SELECT_SET, start, nullptr, sizes, nullptr) < 0 ||
      H5Dread(handles_->dataset.get(), H5T_NATIVE_UINT8, memory.get(), handles_->space.get(), H5P_DEFAULT,
              to) < 0) {
    fail_tensor({path_, name_}, fmt::format("cannot be read at entry {}: {}", first, cause()));
  }
}

std::vector<int64_t> Hdf5Dataset::read_integers() const {
  int64_t count = 1;
  for (const int64_t size : shape_) count *= size;
  std::vector<int64_t> values(static_cast<size_t>(count));
  const std::lock_guard lock(hdf5_lock());
  const QuietErrors quiet;
  if (H5Dread(handles_->dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    fail_tensor({path_, name_}, fmt::format("cannot be read: {}", cause()));
  }
  return values;
}

}  // namespace lockstep::images
