#include "interop/torch_archive.h"

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <cstring>
#include <limits>

#include "interop/pickle.h"
#include "interop/stored_tensor.h"

namespace lockstep::interop {
namespace {

using caffe2::serialize::PyTorchStreamReader;

// A record's own header: the way of compression is a number of two bytes at 8.
constexpr size_t kHeaderBytes = 10;

bool is_contiguous(const TensorReference& tensor) {
  int64_t expected = 1;
  for (size_t i = tensor.sizes.size(); i-- > 0;) {
    if (tensor.sizes[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.sizes[i];
  }
  return true;
}

}  // namespace

struct TorchArchive::Records {
  explicit Records(const std::shared_ptr<FileBytes>& file) : reader(file) {}
  PyTorchStreamReader reader;
  std::unordered_map<std::string, Place> places;
};

TorchArchive::TorchArchive(std::filesystem::path path)
    : path_(std::move(path)), file_(std::make_shared<FileBytes>(path_)) {
  try {
    if (file_->read_text(0, kZipMagic.size()) != kZipMagic) {
      throw PickleError("it is no zip archive: torch.save of PyTorch 1.6 or later did not write it");
    }
    records_ = std::make_unique<Records>(file_);
    PyTorchStreamReader& reader = records_->reader;
    if (!reader.hasRecord("data.pkl")) {
      throw PickleError("it is a zip archive without 'data.pkl', not written by torch.save");
    }
    const auto content = [&](const std::string& name, size_t most) {
      const size_t bytes = reader.getRecordSize(name);
      if (bytes > std::min(most, file_->size())) {
        throw PickleError(fmt::format("its record '{}' is too large: {} bytes", name, bytes));
      }
      std::string text(bytes, '\0');
      reader.getRecord(name, text.data(), bytes);
      return text;
    };
    if (reader.hasRecord("byteorder") && content("byteorder", 16) != "little") {
      throw PickleError("its numbers are not little-endian");
    }
    pickle_ = parse_pickle(content("data.pkl", kMaxPickleBytes), UnknownNames::kKeep);
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
    const std::string name = "data/" + key;
    const std::string header = file_->read_text(records_->reader.getRecordHeaderOffset(name), kHeaderBytes);
    if (header.size() < kHeaderBytes || !header.starts_with("PK\x03\x04")) throw PickleError("it is cut off");
    if (header[8] != 0 || header[9] != 0) {
      throw PickleError(fmt::format("its record '{}' is compressed, which torch.save does not do", name));
    }
    found->second = {records_->reader.getRecordOffset(name), records_->reader.getRecordSize(name)};
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
  if (storage.offset > file_->size() || storage.bytes > file_->size() - storage.offset) fail("it is cut off");
  // Strides of 0 make much of little.
  if (extent->bytes > file_->size()) fail(fmt::format("a tensor would take {} bytes", extent->bytes));
  return {storage.offset + begin, extent->reach - begin};
}

void TorchArchive::check(const TensorReference& tensor) const { span(tensor); }

void TorchArchive::read_bytes(uint64_t offset, void* to, size_t bytes) const {
  if (file_->read(offset, to, bytes) != bytes) fail("it is cut off");
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

}  // namespace lockstep::interop
