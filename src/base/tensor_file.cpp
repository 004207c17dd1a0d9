#include "base/tensor_file.h"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/file.h"
#include "base/number.h"
#include "base/safetensors.h"

namespace lockstep::base {
namespace {

using Path = std::filesystem::path;
using Bytes = std::span<const uint8_t>;

std::string_view text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Throws the ConfigError for a byte of the file, or of the array in it.
using BrokenAt = std::function<void(uint64_t offset, const std::string& reason)>;

// --- .npy ---
//
// "\x93NUMPY", a version, the length of a text, the text, the elements. The text is a Python
// dictionary: {'descr': '|u1', 'fortran_order': False, 'shape': (60000, 28, 28), }

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr uint64_t kMaxTextBytes = 65'536;

std::string_view without_spaces(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

// The text after the key, up to the character `end`; empty: the key is missing.
std::string_view value_of(std::string_view text, std::string_view key, char end) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return "";
  const std::string_view rest = text.substr(at + key.size());
  return without_spaces(rest.substr(0, rest.find(end)));
}

// "F32" for "'<f4'"; empty: another type, or the most significant byte first.
std::string_view dtype_of(std::string_view descr) {
  static constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
      {"b1", "BOOL"}, {"u1", "U8"},  {"u2", "U16"}, {"u4", "U32"},  {"u8", "U64"},
      {"i1", "I8"},   {"i2", "I16"}, {"i4", "I32"}, {"i8", "I64"},  {"f2", "F16"},
      {"f4", "F32"},  {"f8", "F64"}, {"c8", "C64"}, {"c16", "C128"}};
  if (descr.size() < 5 || descr.front() != '\'' || descr.back() != '\'') return "";
  const std::string_view type = descr.substr(2, descr.size() - 3);
  const bool is_ours = descr[1] == '<' || (descr[1] == '|' && type.back() == '1');
  if (!is_ours) return "";
  for (const auto& [name, dtype] : kTypes) {
    if (name == type) return dtype;
  }
  return "";
}

// "(3, 4)", "(3,)", "()".
std::optional<std::vector<int64_t>> shape_of(std::string_view text) {
  if (text.empty() || text.front() != '(') return std::nullopt;
  text.remove_prefix(1);
  std::vector<int64_t> shape;
  while (!without_spaces(text).empty()) {
    const size_t comma = text.find(',');
    const auto size = parse_integer(without_spaces(text.substr(0, comma)));
    if (!size || *size < 0 || shape.size() == kMaxTensorDimensions) return std::nullopt;
    shape.push_back(*size);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return shape;
}

// The offset of the dictionary and its length.
std::pair<uint64_t, uint64_t> npy_text_place(Bytes file, const BrokenAt& fail) {
  constexpr uint64_t kVersionAt = kNpyMagic.size();
  if (!text_of(file).starts_with(kNpyMagic)) fail(0, "no .npy file");
  if (file.size() < kVersionAt + 2) fail(file.size(), "it ends within its header");
  const uint8_t version = file[kVersionAt];
  if (version < 1 || version > 3) fail(kVersionAt, fmt::format("version {} of .npy is unknown", version));
  const uint64_t length_bytes = version == 1 ? 2 : 4;
  const uint64_t begin = kVersionAt + 2 + length_bytes;
  if (file.size() < begin) fail(file.size(), "it ends within its header");
  uint64_t length = 0;
  for (uint64_t i = 0; i < length_bytes; ++i) length |= uint64_t{file[begin - length_bytes + i]} << (8 * i);
  if (length > kMaxTextBytes) fail(begin, fmt::format("a header of {} bytes", length));
  if (file.size() - begin < length) fail(begin, "it ends within its header");
  return {begin, length};
}

// The tensor without its owner; `bytes` refers to the file.
FileTensor parse_npy(Bytes file, const BrokenAt& fail) {
  const auto [begin, length] = npy_text_place(file, fail);
  const std::string_view text = text_of(file.subspan(begin, length));
  FileTensor tensor;
  tensor.dtype = dtype_of(value_of(text, "'descr':", ','));
  if (tensor.dtype.empty()) {
    fail(begin,
         "'descr' is no bool, integer, float or complex number with the least significant byte first: "
         "convert the array with astype()");
  }
  const std::string_view order = value_of(text, "'fortran_order':", ',');
  if (order != "False" && order != "True") fail(begin, "'fortran_order' is neither False nor True");
  tensor.is_fortran = order == "True";
  const auto shape = shape_of(value_of(text, "'shape':", ')'));
  if (!shape) fail(begin, fmt::format("'shape' is no tuple of at most {} sizes", kMaxTensorDimensions));
  tensor.shape = *shape;
  tensor.offset = begin + length;
  tensor.bytes = file.subspan(begin + length);
  const auto wanted = shape_bytes(tensor.shape, tensor_dtype_bytes(tensor.dtype));
  if (!wanted || static_cast<uint64_t>(*wanted) != tensor.bytes.size()) {
    fail(begin + length, fmt::format("{} bytes of data, not those of the shape [{}]", tensor.bytes.size(),
                                     fmt::join(tensor.shape, ", ")));
  }
  return tensor;
}

// --- .npz: a zip archive of .npy files ---

constexpr std::string_view kZipMagic = "PK\x03\x04";
constexpr std::string_view kEmptyZipMagic = "PK\x05\x06";
constexpr size_t kMaxArrays = 100'000;
constexpr size_t kReadBytes = size_t{1} << 20;
// Stored data is as large as the file at most, and one byte of deflate unpacks to 1032 at most.
constexpr uint64_t kDeflateRatio = 1032;

class Zip {
 public:
  Zip(Bytes file, const BrokenAt& fail)
      : file_(file), fail_(fail), archive_(archive_read_new(), archive_read_free) {
    if (archive_ == nullptr) fail_(0, "no memory");
    archive_read_support_format_zip(archive_.get());
    if (archive_read_open_memory(archive_.get(), file.data(), file.size()) != ARCHIVE_OK) fail_here();
  }

  // False: the end.
  bool next() {
    const int status = archive_read_next_header(archive_.get(), &entry_);
    if (status == ARCHIVE_EOF) return false;
    if (status != ARCHIVE_OK && status != ARCHIVE_WARN) fail_here();
    return true;
  }

  std::string name() const {
    const char* name = archive_entry_pathname_utf8(entry_);
    return name == nullptr ? "" : name;
  }

  std::shared_ptr<std::vector<uint8_t>> read() {
    auto data = std::make_shared<std::vector<uint8_t>>();
    const uint64_t most = kDeflateRatio * file_.size();
    for (;;) {
      const size_t done = data->size();
      if (done > most) fail_(0, "an array is larger than the file can hold");
      data->resize(done + kReadBytes);
      const la_ssize_t got = archive_read_data(archive_.get(), data->data() + done, kReadBytes);
      if (got < 0) fail_here();
      data->resize(done + static_cast<size_t>(got));
      if (got == 0) return data;
    }
  }

 private:
  void fail_here() const {
    const char* text = archive_error_string(archive_.get());
    fail_(0, fmt::format("no zip archive, or truncated: {}", text == nullptr ? "it ends too early" : text));
  }

  Bytes file_;
  const BrokenAt& fail_;
  std::unique_ptr<struct archive, int (*)(struct archive*)> archive_;
  struct archive_entry* entry_ = nullptr;
};

std::vector<FileTensor> read_npz(Bytes file, const BrokenAt& fail) {
  std::vector<FileTensor> tensors;
  Zip zip(file, fail);
  while (zip.next()) {
    std::string name = zip.name();
    if (!name.ends_with(".npy")) continue;
    name.resize(name.size() - 4);
    if (tensors.size() == kMaxArrays) fail(0, fmt::format("it has more than {} arrays", kMaxArrays));
    const auto data = zip.read();
    FileTensor tensor = parse_npy(*data, [&](uint64_t offset, const std::string& reason) {
      fail(0, fmt::format("array '{}' at byte {}: {}", name, offset, reason));
    });
    tensor.name = std::move(name);
    tensor.owner = data;
    tensor.offset.reset();
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// --- safetensors ---

std::vector<FileTensor> read_safetensors(Bytes file, const Path& path, const FileFault& fault) {
  const std::string_view bytes = text_of(file);
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t text_bytes =
      safetensors_text_bytes(bytes.substr(0, kSafetensorsLengthBytes), size, path, fault);
  SafetensorsText header = parse_safetensors(
      bytes.substr(kSafetensorsLengthBytes, static_cast<size_t>(text_bytes)), size, path, fault);
  std::vector<FileTensor> tensors;
  for (SafetensorsEntry& entry : header.tensors) {
    const auto begin = static_cast<uint64_t>(header.bytes + entry.begin);
    tensors.push_back({.name = std::move(entry.name),
                       .dtype = std::move(entry.dtype),
                       .shape = std::move(entry.shape),
                       .is_fortran = false,
                       .owner = nullptr,
                       .bytes = file.subspan(begin, static_cast<size_t>(entry.end - entry.begin)),
                       .offset = begin});
  }
  return tensors;
}

// A length of at most 100 MB in 8 bytes, then JSON.
bool is_safetensors(Bytes file) {
  return file.size() > kSafetensorsLengthBytes && file[7] == 0 && file[6] == 0 &&
         file[kSafetensorsLengthBytes] == '{';
}

bool is_zip(Bytes file) {
  return text_of(file).starts_with(kZipMagic) || text_of(file).starts_with(kEmptyZipMagic);
}

}  // namespace

std::string FileTensor::place(const std::filesystem::path& path) const {
  return name.empty() ? fmt::format("'{}'", path.string())
                      : fmt::format("'{}': tensor '{}'", path.string(), name);
}

int64_t tensor_dtype_bytes(std::string_view dtype) {
  return dtype == "C128" ? 16 : dtype_bytes(dtype).value_or(0);
}

std::vector<FileTensor> read_tensor_file(const std::filesystem::path& path, std::string_view component) {
  const auto mapped = std::make_shared<const MappedFile>(path, component);
  const Bytes file = mapped->bytes();
  const BrokenAt fail = [&](uint64_t offset, const std::string& reason) {
    throw ConfigError(component, fmt::format("'{}' is broken at byte {}: {}", path.string(), offset, reason));
  };
  std::vector<FileTensor> tensors;
  if (text_of(file).starts_with(kNpyMagic)) {
    tensors.push_back(parse_npy(file, fail));
  } else if (is_zip(file)) {
    tensors = read_npz(file, fail);
  } else if (is_safetensors(file)) {
    tensors = read_safetensors(file, path, [&](const Path& broken, const std::string& reason) {
      throw ConfigError(component, fmt::format("'{}' is broken: {}", broken.string(), reason));
    });
  } else {
    throw ConfigError(component, fmt::format("'{}' is no .npy, .npz or safetensors file", path.string()));
  }
  for (FileTensor& tensor : tensors) {
    if (tensor.owner == nullptr) tensor.owner = mapped;
  }
  return tensors;
}

bool is_tensor_file(const std::filesystem::path& path) {
  const InputFile file(path, cannot_read("data"));
  const std::string begin = file.read_some(16, 0);
  const Bytes bytes(reinterpret_cast<const uint8_t*>(begin.data()), begin.size());
  return begin.starts_with(kNpyMagic) || is_zip(bytes) || is_safetensors(bytes);
}

TensorSource parse_tensor_source(std::string_view text) {
  const size_t colon = text.rfind(':');
  std::error_code ignored;
  if (colon == std::string_view::npos || std::filesystem::exists(Path(text), ignored))
    return {Path(text), ""};
  return {Path(text.substr(0, colon)), std::string(text.substr(colon + 1))};
}

size_t select_tensor(const TensorSource& source, const std::vector<std::string>& names,
                     std::initializer_list<std::string_view> usual, std::string_view component) {
  const auto find = [&](std::string_view name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  if (!source.name.empty()) {
    if (const size_t i = find(source.name); i < names.size()) return i;
    throw ConfigError(component,
                      fmt::format("'{}' has no tensor '{}'; it has {}", source.path.string(), source.name,
                                  names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
  if (names.size() == 1) return 0;
  for (const std::string_view name : usual) {
    if (const size_t i = find(name); i < names.size()) return i;
  }
  throw ConfigError(component, names.empty()
                                   ? fmt::format("'{}' has no tensors", source.path.string())
                                   : fmt::format("'{0}' has several tensors, name one as {0}:NAME: {1}",
                                                 source.path.string(), fmt::join(names, ", ")));
}

}  // namespace lockstep::base
