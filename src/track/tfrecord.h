#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// TFRecord, the file format of TensorBoard's event files: records with checksums.
namespace lockstep::track {

// CRC-32C (Castagnoli), as in RFC 3720.
uint32_t crc32c(std::string_view bytes);

// The checksum that TFRecord stores: CRC-32C, rotated and shifted by a constant, so that the
// checksum of data that contains checksums stays meaningful.
uint32_t masked_crc32c(std::string_view bytes);

// A record as the file holds it: its length in 8 bytes, the masked checksum of the length, the
// record, the masked checksum of the record.
std::string frame_record(std::string_view record);

}  // namespace lockstep::track
