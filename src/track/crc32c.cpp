#include "track/crc32c.h"

#include <array>

namespace lockstep::track {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0x82f63b78U : 0U);
    table[byte] = sum;
  }
  return table;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  uint32_t sum = ~0U;
  for (const char byte : bytes) sum = (sum >> 8) ^ kTable[(sum ^ static_cast<uint8_t>(byte)) & 0xffU];
  return ~sum;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t sum = crc32c(bytes);
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8U;
}

}  // namespace lockstep::track
