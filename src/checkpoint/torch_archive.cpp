#include "checkpoint/torch_archive.h"

#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <exception>
#include <limits>
#include <string_view>
#include <unordered_map>

namespace lockstep::checkpoint {
namespace {

using caffe2::serialize::PyTorchStreamReader;

constexpr std::string_view kZipMagic = "PK";
// The header of a record has the compression method, a number of two bytes, at offset 8.
constexpr size_t kRecordHeaderBytes = 10;

// LibTorch's archive reader reads at the offsets in the archive, which may be hostile: beyond the end
// of the file it gets fewer bytes.
class ZipInput final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit ZipInput(std::shared_ptr<const base::InputFile> file) : file_(std::move(file)) {}

  size_t size() const override { return static_cast<size_t>(file_->bytes()); }
  size_t read(uint64_t position, void* buffer, size_t n, const char* /*what*/) const override {
    return file_->read_some(buffer, n, position);
  }

 private:
  std::shared_ptr<const base::InputFile> file_;
};

bool is_contiguous(const TensorReference& tensor) {
  int64_t expected = 1;
  for (size_t i = tensor.sizes.size(); i-- > 0;) {
    if (tensor.sizes[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.sizes[i];
  }
  return true;
}

}  // namespace

bool is_zip(const base::InputFile& file) { return file.read_some(kZipMagic.size(), 0) == kZipMagic; }

std::unique_ptr<PyTorchStreamReader> open_zip(std::shared_ptr<const base::InputFile> file) {
  try {
    return std::make_unique<PyTorchStreamReader>(std::make_shared<ZipInput>(std::move(file)));
  } catch (const c10::Error&) {
    // LibTorch's text is about its zip library.
    throw PickleError("it is not a complete zip archive: save or copy it again");
  }
}

std::string read_record(PyTorchStreamReader& archive, const std::string& name, size_t limit) {
  const size_t bytes = archive.getRecordSize(name);
  if (bytes > limit) throw PickleError(fmt::format("its record '{}' is too large: {} bytes", name, bytes));
  std::string content(bytes, '\0');
  archive.getRecord(name, content.data(), bytes);
  return content;
}

std::string read_data_pickle(PyTorchStreamReader& archive, size_t file_bytes) {
  if (!archive.hasRecord("data.pkl")) {
    throw PickleError("it is a zip archive without 'data.pkl', not written by torch.save");
  }
  return read_record(archive, "data.pkl", std::min(file_bytes, kMaxPickleBytes));
}

bool is_big_endian(PyTorchStreamReader& archive, size_t file_bytes) {
  if (!archive.hasRecord("byteorder")) return false;
  const std::string order = read_record(archive, "byteorder", std::min<size_t>(file_bytes, 16));
  if (order != "little" && order != "big") throw PickleError("its byte order is neither little nor big");
  return order == "big";
}

RecordPlace place_of_record(PyTorchStreamReader& archive, const base::InputFile& file,
                            const std::string& name) {
  const std::string header = file.read_some(kRecordHeaderBytes, archive.getRecordHeaderOffset(name));
  if (header.size() < kRecordHeaderBytes || !header.starts_with("PK\x03\x04")) {
    throw PickleError("it is cut off");
  }
  if (header[8] != 0 || header[9] != 0) {
    throw PickleError(fmt::format("its record '{}' is compressed, which torch.save does not do", name));
  }
  const RecordPlace place{archive.getRecordOffset(name), archive.getRecordSize(name)};
  const auto file_bytes = static_cast<uint64_t>(file.bytes());
  if (place.offset > file_bytes || place.bytes > file_bytes - place.offset)
    throw PickleError("it is cut off");
  return place;
}

std::optional<TensorExtent> extent_of(const TensorReference& tensor) {
  const uint64_t item_bytes = c10::elementSize(tensor.dtype);
  auto last = static_cast<uint64_t>(tensor.offset);
  uint64_t numel = 1;
  bool empty = false;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    const auto size = static_cast<uint64_t>(tensor.sizes[i]);
    if (size == 0) {
      empty = true;
      continue;
    }
    uint64_t step = 0;
    if (__builtin_mul_overflow(size - 1, static_cast<uint64_t>(tensor.strides[i]), &step))
      return std::nullopt;
    if (__builtin_add_overflow(last, step, &last)) return std::nullopt;
    if (__builtin_mul_overflow(numel, size, &numel)) return std::nullopt;
  }
  TensorExtent extent;
  if (__builtin_mul_overflow(numel, item_bytes, &extent.bytes)) return std::nullopt;
  if (extent.bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  if (empty) return TensorExtent{};
  if (__builtin_add_overflow(last, uint64_t{1}, &last)) return std::nullopt;
  if (__builtin_mul_overflow(last, item_bytes, &extent.reach)) return std::nullopt;
  return extent;
}

struct TorchArchive::Records {
  std::unique_ptr<PyTorchStreamReader> reader;
  std::unordered_map<std::string, Place> places;
};

TorchArchive::TorchArchive(std::filesystem::path path)
    : path_(std::move(path)),
      file_(std::make_shared<const base::InputFile>(path_, base::cannot_read("interop"))) {
  try {
    if (!is_zip(*file_)) {
      throw PickleError("it is no zip archive: torch.save of PyTorch 1.6 or later did not write it");
    }
    records_ = std::make_unique<Records>(Records{open_zip(file_), {}});
    const auto file_bytes = static_cast<size_t>(file_->bytes());
    const std::string pickled = read_data_pickle(*records_->reader, file_bytes);
    if (is_big_endian(*records_->reader, file_bytes)) throw PickleError("its numbers are not little-endian");
    pickle_ = parse_pickle(pickled, UnknownNames::kKeep);
  } catch (const PickleError& error) {
    fail(error.what());
  } catch (const c10::Error& error) {
    fail(error.what_without_backtrace());
  }
}

TorchArchive::~TorchArchive() = default;
TorchArchive::TorchArchive(TorchArchive&&) noexcept = default;

void TorchArchive::fail(const std::string& reason) const {
  throw ConfigError("interop", fmt::format("cannot read '{}': {}", path_.string(), reason));
}

TorchArchive::Place TorchArchive::place(const std::string& key) const {
  const auto [found, is_new] = records_->places.try_emplace(key);
  if (!is_new) return found->second;
  try {
    found->second = place_of_record(*records_->reader, *file_, "data/" + key);
  } catch (const PickleError& error) {
    fail(error.what());
  } catch (const c10::Error& error) {
    fail(error.what_without_backtrace());
  }
  return found->second;
}

TorchArchive::Place TorchArchive::span(const TensorReference& tensor) const {
  const auto extent = extent_of(tensor);
  if (!extent) fail("the sizes of a tensor overflow");
  if (extent->bytes == 0) return {};
  const Place storage = place(tensor.storage.key);
  const uint64_t begin = static_cast<uint64_t>(tensor.offset) * c10::elementSize(tensor.dtype);
  if (extent->reach > storage.bytes) {
    fail(fmt::format("a tensor reaches to byte {} of a storage of {}", extent->reach, storage.bytes));
  }
  // A tensor with strides of 0 can be much larger than its storage.
  if (extent->bytes > static_cast<uint64_t>(file_->bytes()))
    fail(fmt::format("a tensor would take {} bytes", extent->bytes));
  return {storage.offset + begin, extent->reach - begin};
}

void TorchArchive::check(const TensorReference& tensor) const { span(tensor); }

void TorchArchive::read_bytes(uint64_t offset, void* to, size_t bytes) const {
  if (file_->read_some(to, bytes, offset) != bytes) fail("it is cut off");
}

at::Tensor TorchArchive::read(const TensorReference& tensor) const {
  const Place where = span(tensor);
  const auto options = at::TensorOptions().dtype(tensor.dtype);
  if (where.bytes == 0) return at::empty(tensor.sizes, options);
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  at::Tensor memory = at::empty({static_cast<int64_t>(where.bytes) / item_bytes}, options);
  read_bytes(where.offset, memory.data_ptr(), where.bytes);
  at::Tensor result = memory.as_strided(tensor.sizes, tensor.strides);
  if (tensor.conjugate && result.is_complex()) result = result.conj().resolve_conj();
  if (tensor.negative) result = result.neg();
  return result.contiguous();
}

void TorchArchive::read(const TensorReference& tensor, int64_t first, const at::Tensor& out) const {
  const Place where = span(tensor);
  if (!is_contiguous(tensor) || tensor.dtype != out.scalar_type() || tensor.negative || tensor.conjugate) {
    fail("a tensor of its flat ones is not contiguous");
  }
  const auto item_bytes = static_cast<uint64_t>(out.element_size());
  const uint64_t elements = where.bytes / item_bytes;
  const auto count = static_cast<uint64_t>(out.numel());
  if (first < 0 || static_cast<uint64_t>(first) > elements ||
      count > elements - static_cast<uint64_t>(first)) {
    fail(fmt::format("elements {} + {} are not in a tensor of {}", first, count, elements));
  }
  if (count > 0) {
    read_bytes(where.offset + static_cast<uint64_t>(first) * item_bytes, out.data_ptr(), count * item_bytes);
  }
}

void publish_archive(const std::filesystem::path& path,
                     const std::function<void(const ArchiveOutput&)>& write) {
  base::publish_file(path, [&](const base::Append& append) {
    // LibTorch's writers finish the archive in a destructor that must not fail: after a failure they
    // get no error, and it is rethrown below.
    std::exception_ptr failure;
    write([&](const void* data, size_t bytes) -> size_t {
      try {
        if (!failure) append(std::string_view(static_cast<const char*>(data), bytes));
      } catch (...) {
        failure = std::current_exception();
      }
      return bytes;
    });
    if (failure) std::rethrow_exception(failure);
  });
}

}  // namespace lockstep::checkpoint
