#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "images/hdf5_dataset.h"

namespace lockstep::images {
namespace {

using Bytes = std::vector<uint8_t>;

// Fletcher's sum over words of two bytes, the more significant one first.
uint32_t fletcher32(std::span<const uint8_t> bytes) {
  uint64_t first = 0, second = 0;
  for (size_t i = 0; i < bytes.size(); i += 2) {
    first += bytes[i] << 8 | (i + 1 < bytes.size() ? bytes[i + 1] : 0);
    first = (first & 0xffff) + (first >> 16);
    second += first;
    second = (second & 0xffff) + (second >> 16);
  }
  return static_cast<uint32_t>(second << 16 | first);
}

Bytes inflate_all(std::span<const uint8_t> packed, size_t size, const ByteCursor& cursor) {
  if (size / kDeflateRatio > packed.size()) cursor.fail("a chunk that is too short for what it unpacks to");
  Bytes bytes(size);
  uLongf got = size;
  const int status = uncompress(bytes.data(), &got, packed.data(), packed.size());
  if (status != Z_OK || got != size) {
    cursor.fail(fmt::format("a chunk does not unpack to its {} bytes: {}", size,
                            status == Z_OK ? "too short" : zError(status)));
  }
  return bytes;
}

// First the first bytes of all elements, then the second ones: back to one after the other.
Bytes unshuffle(std::span<const uint8_t> bytes, size_t element_bytes) {
  Bytes result(bytes.begin(), bytes.end());
  const size_t count = bytes.size() / element_bytes;
  for (size_t b = 0; b < element_bytes; ++b) {
    for (size_t i = 0; i < count; ++i) result[i * element_bytes + b] = bytes[b * count + i];
  }
  return result;
}

// Copies what a chunk and the dataset have in common, dimension by dimension.
class ChunkCopy {
 public:
  ChunkCopy(const Hdf5Dataset& dataset, uint8_t* to) : dataset_(dataset), to_(to) {}

  void copy(const uint8_t* from, size_t number) {
    std::vector<int64_t> first(dataset_.shape.size());
    auto rest = static_cast<int64_t>(number);
    for (size_t i = first.size(); i-- > 0;) {
      const int64_t grid = (dataset_.shape[i] - 1) / dataset_.chunk_shape[i] + 1;
      first[i] = rest % grid * dataset_.chunk_shape[i];
      rest /= grid;
    }
    copy_from(0, 0, 0, from, first);
  }

 private:
  // place and chunk_place: elements before this row, counted in rows of dimension i.
  void copy_from(size_t i, int64_t place, int64_t chunk_place, const uint8_t* from,
                 const std::vector<int64_t>& first) {
    const int64_t count = std::min(dataset_.chunk_shape[i], dataset_.shape[i] - first[i]);
    place = place * dataset_.shape[i] + first[i];
    chunk_place *= dataset_.chunk_shape[i];
    if (i + 1 < first.size()) {
      for (int64_t k = 0; k < count; ++k) copy_from(i + 1, place + k, chunk_place + k, from, first);
      return;
    }
    const int64_t bytes = dataset_.type.bytes;
    std::memcpy(to_ + place * bytes, from + chunk_place * bytes, static_cast<size_t>(count * bytes));
  }

  const Hdf5Dataset& dataset_;
  uint8_t* to_;
};

}  // namespace

SharedBytes unpack_chunks(const Hdf5File& file, const Hdf5Dataset& dataset) {
  const auto size = static_cast<size_t>(dataset.chunk_bytes());
  WritableBytes all =
      allocate_bytes(static_cast<size_t>(dataset.elements() * dataset.type.bytes), file.path());
  ChunkCopy copy(dataset, all.data);
  for (size_t number = 0; number < dataset.chunks.size(); ++number) {
    const Hdf5Dataset::Chunk& chunk = dataset.chunks[number];
    const ByteCursor place = file.at(chunk.begin - file.base());
    std::span<const uint8_t> bytes = ByteCursor(place).bytes(chunk.bytes);
    Bytes unpacked;
    for (size_t i = dataset.filters.size(); i-- > 0;) {
      if ((chunk.skipped >> i & 1) != 0) continue;
      if (dataset.filters[i] == kFletcher32) {
        if (bytes.size() < 4) place.fail("a chunk without its checksum");
        const std::span<const uint8_t> sum = bytes.last(4);
        bytes = bytes.first(bytes.size() - 4);
        const uint32_t stored = sum[0] | sum[1] << 8 | sum[2] << 16 | uint32_t{sum[3]} << 24;
        if (stored != fletcher32(bytes)) place.fail("a chunk that its checksum does not fit");
        continue;
      }
      unpacked = dataset.filters[i] == kDeflate ? inflate_all(bytes, size, place)
                                                : unshuffle(bytes, static_cast<size_t>(dataset.type.bytes));
      bytes = unpacked;
    }
    if (bytes.size() != size) place.fail(fmt::format("a chunk of {} bytes, not {}", bytes.size(), size));
    copy.copy(bytes.data(), number);
  }
  return std::move(all.shared);
}

}  // namespace lockstep::images
