// Tensors of images and labels: one safetensors file, or two .npy files. The files are mapped.
#include <fmt/format.h>
#include <lockstep/image_files.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/number.h"
#include "base/safetensors.h"
#include "images/file_bytes.h"
#include "images/packed_images.h"

namespace lockstep {
namespace images {
namespace {

using Path = std::filesystem::path;

// --- .npy ---
//
// "\x93NUMPY", a version, the length of a text, the text, the elements. The text is a Python
// dictionary: {'descr': '|u1', 'fortran_order': False, 'shape': (60000, 28, 28), }

constexpr uint64_t kMaxTextBytes = 65'536;
constexpr size_t kMaxNpyDimensions = 8;

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

std::optional<IntegerType> type_of(std::string_view descr) {
  const auto bytes = descr.size() == 5 ? base::parse_integer(descr.substr(3, 1)) : std::nullopt;
  if (!bytes || (*bytes != 1 && *bytes != 2 && *bytes != 4 && *bytes != 8)) return std::nullopt;
  const char order = descr[1], kind = descr[2];
  const bool is_ours = order == '<' || (order == '|' && *bytes == 1);
  if (descr.front() != '\'' || descr.back() != '\'' || !is_ours || (kind != 'u' && kind != 'i'))
    return std::nullopt;
  return IntegerType{.bytes = static_cast<int>(*bytes), .is_signed = kind == 'i'};
}

// "(3, 4)", "(3,)".
std::optional<std::vector<int64_t>> shape_of(std::string_view text) {
  if (text.empty() || text.front() != '(') return std::nullopt;
  text.remove_prefix(1);
  std::vector<int64_t> shape;
  while (!without_spaces(text).empty()) {
    const size_t comma = text.find(',');
    const auto size = base::parse_integer(without_spaces(text.substr(0, comma)));
    if (!size || *size < 0 || shape.size() == kMaxNpyDimensions) return std::nullopt;
    shape.push_back(*size);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return shape;
}

// The header of a .npy file with integers.
struct NpyHeader {
  IntegerType type;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // offset of the elements, which fill the rest of the file
};

// ConfigError: not a .npy file, elements that are not little-endian integers, Fortran order, or a
// size that does not match the shape.
NpyHeader parse_npy(std::span<const uint8_t> file, const std::filesystem::path& path) {
  ByteCursor cursor(file, path, 0);
  if (!cursor.take("\x93NUMPY")) cursor.fail("no .npy file");
  const uint8_t version = cursor.u8();
  cursor.skip(1);
  if (version < 1 || version > 3) cursor.fail(fmt::format("version {} of .npy is unknown", version));
  const uint64_t text_bytes = cursor.number(version == 1 ? 2 : 4);
  if (text_bytes > kMaxTextBytes) cursor.fail(fmt::format("a header of {} bytes", text_bytes));
  const uint64_t text_at = cursor.at();
  const auto bytes = cursor.bytes(text_bytes);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto fail = [&](std::string_view reason) { fail_at(path, static_cast<int64_t>(text_at), reason); };

  const auto type = type_of(value_of(text, "'descr':", ','));
  if (!type) fail("'descr' is no integer of 1, 2, 4 or 8 bytes with the least significant one first");
  if (value_of(text, "'fortran_order':", ',') != "False") fail("'fortran_order' is not False");
  const auto shape = shape_of(value_of(text, "'shape':", ')'));
  if (!shape || shape->empty()) fail("'shape' has not 1 to 8 dimensions");
  const auto wanted = base::shape_bytes(*shape, type->bytes);
  if (!wanted || static_cast<uint64_t>(*wanted) != cursor.left()) {
    cursor.fail(
        fmt::format("{} bytes of data, not those of the shape [{}]", cursor.left(), fmt::join(*shape, ", ")));
  }
  return {.type = *type, .shape = *shape, .begin = cursor.at()};
}

// --- the set ---

// A tensor of a mapped file, whose data are inside the file.
struct MappedTensor {
  SharedBytes file;
  uint64_t begin = 0;
  std::vector<int64_t> shape;
  IntegerType type;
  TensorPlace place;
};

void fault(const Path& path, const std::string& reason) {
  throw ConfigError(kComponent, fmt::format("'{}' is broken: {}", path.string(), reason));
}

std::optional<IntegerType> integer_type(std::string_view dtype) {
  if (dtype.size() < 2 || (dtype[0] != 'U' && dtype[0] != 'I')) return std::nullopt;
  const auto bytes = base::dtype_bytes(dtype);
  if (!bytes) return std::nullopt;
  return IntegerType{.bytes = static_cast<int>(*bytes), .is_signed = dtype[0] == 'I'};
}

MappedTensor find_tensor(const base::SafetensorsText& header, const SharedBytes& file,
                         const TensorPlace& place) {
  const auto found =
      std::find_if(header.tensors.begin(), header.tensors.end(),
                   [&](const base::SafetensorsEntry& entry) { return entry.name == place.name; });
  if (found == header.tensors.end()) fail_tensor(place, "the file has none of this name");
  const auto type = integer_type(found->dtype);
  if (!type) fail_tensor(place, fmt::format("its elements are no integers: {}", found->dtype));
  return {file, static_cast<uint64_t>(header.bytes + found->begin), found->shape, *type, place};
}

MappedTensor map_npy(const TensorPlace& place) {
  SharedBytes file = map_file(place.path);
  NpyHeader header = parse_npy(file.bytes, place.path);
  return {std::move(file), header.begin, std::move(header.shape), header.type, place};
}

ImageSet make_set(MappedTensor images, const MappedTensor& labels, ImageClasses classes) {
  if (images.type.bytes != 1 || images.type.is_signed) {
    fail_tensor(images.place, "its elements are not unsigned bytes");
  }
  const ImageTensor tensor = image_tensor(images.shape, images.place);
  if (labels.shape.size() != 1 || labels.shape[0] != tensor.count) {
    fail_tensor(labels.place, fmt::format("the shape [{}] is not that of {} labels",
                                          fmt::join(labels.shape, ", "), tensor.count));
  }
  const auto label_bytes = labels.file.bytes.subspan(static_cast<size_t>(labels.begin),
                                                     static_cast<size_t>(tensor.count * labels.type.bytes));
  ImageLabels values =
      integer_labels(label_bytes, labels.type, std::move(classes), labels.begin, labels.place);
  std::vector<ImageBlock> blocks;
  blocks.push_back(
      {std::move(images.file), static_cast<int64_t>(images.begin), tensor.shape.bytes(), tensor.count});
  return std::make_shared<PackedImages>(tensor.shape, std::move(blocks), std::move(values));
}

}  // namespace
}  // namespace images

ImageSet open_safetensors(const std::filesystem::path& path, ImageClasses classes) {
  const images::SharedBytes file = images::map_file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
  const auto size = static_cast<int64_t>(bytes.size());
  const std::string_view length = bytes.substr(0, base::kSafetensorsLengthBytes);
  const int64_t text_bytes = base::safetensors_text_bytes(length, size, path, images::fault);
  const base::SafetensorsText header =
      base::parse_safetensors(bytes.substr(base::kSafetensorsLengthBytes, static_cast<size_t>(text_bytes)),
                              size, path, images::fault);
  return images::make_set(images::find_tensor(header, file, {path, "images"}),
                          images::find_tensor(header, file, {path, "labels"}), std::move(classes));
}

ImageSet open_npy(const std::filesystem::path& images_path, const std::filesystem::path& labels_path,
                  ImageClasses classes) {
  return images::make_set(images::map_npy({images_path, "images"}), images::map_npy({labels_path, "labels"}),
                          std::move(classes));
}

}  // namespace lockstep
