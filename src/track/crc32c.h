#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::track {

// CRC-32C (Castagnoli), as in RFC 3720.
uint32_t crc32c(std::string_view bytes);

// What TFRecord files keep instead of the plain sum: a file that holds sums of itself
// stays checkable.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace lockstep::track
