// A .npy file: "\x93NUMPY", a version, the length of a text, the text, the elements. The
// text is a dictionary as Python writes it:
//   {'descr': '|u1', 'fortran_order': False, 'shape': (60000, 28, 28), }
#include "images/npy.h"

#include <fmt/format.h>

#include <string_view>

#include "base/number.h"
#include "base/safetensors.h"
#include "images/byte_cursor.h"

namespace lockstep::images {
namespace {

constexpr uint64_t kMaxTextBytes = 65'536;
constexpr size_t kMaxNpyDimensions = 8;

std::string_view without_spaces(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

// What follows the key, up to a character that ends it; empty: not there.
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

}  // namespace

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

}  // namespace lockstep::images
