#include "track/tfrecord.h"

#include <array>
#include <bit>
#include <cstring>

namespace lockstep::track {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0x82f63b78U : 0U);
    table[byte] = sum;
  }
  return table;
}

template <typename T>
void append_little_endian(std::string& bytes, T value) {
  static_assert(std::endian::native == std::endian::little);
  std::array<char, sizeof(T)> raw;
  std::memcpy(raw.data(), &value, sizeof(T));
  bytes.append(raw.data(), raw.size());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t sum = ~0U;
  for (const char byte : bytes) sum = (sum >> 8) ^ kTable[(sum ^ static_cast<uint8_t>(byte)) & 0xffU];
  return ~sum;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t sum = crc32c(bytes);
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8U;
}

std::string frame_record(std::string_view record) {
  std::string length;
  append_little_endian(length, uint64_t{record.size()});
  std::string bytes = length;
  append_little_endian(bytes, masked_crc32c(length));
  bytes.append(record);
  append_little_endian(bytes, masked_crc32c(record));
  return bytes;
}

}  // namespace lockstep::track
