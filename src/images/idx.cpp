// IDX: two zero bytes, the type of an element, the number of dimensions, each dimension
// in four bytes, most significant first, then the elements.

#include <fmt/format.h>
#include <lockstep/image_files.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <span>

#include "images/file_bytes.h"
#include "images/packed_images.h"

namespace lockstep {
namespace images {
namespace {

using Path = std::filesystem::path;

// --- gzip ---

constexpr int kGzipWindow = 16 + MAX_WBITS;  // only the gzip format
constexpr size_t kMaxStep = 1 << 30;         // zlib's counters have 32 bits

// Unpacks a gzip file from its beginning to its end, never more than requested. ConfigError with the
// offset in the file: the data are damaged.
class GzipInput {
 public:
  static bool is_gzip(std::span<const uint8_t> bytes);

  // Both arguments must outlive it.
  GzipInput(std::span<const uint8_t> packed, const std::filesystem::path& path);
  ~GzipInput();
  GzipInput(const GzipInput&) = delete;
  GzipInput& operator=(const GzipInput&) = delete;

  // Reads exactly `count` bytes.
  void read(uint8_t* to, size_t count);
  // Fails unless all data were read and the checksum is right.
  void expect_end();
  // The most bytes that the file can unpack to.
  int64_t max_bytes() const;

 private:
  // Unpacks up to `count` bytes; fewer only at the end of the file.
  size_t unpack(uint8_t* to, size_t count);
  int64_t offset() const { return static_cast<int64_t>(packed_.size() - rest_.size() - stream_.avail_in); }

  std::span<const uint8_t> packed_;
  std::span<const uint8_t> rest_;  // not yet passed to zlib
  const std::filesystem::path& path_;
  z_stream stream_{};
  bool ended_ = false;
};

bool GzipInput::is_gzip(std::span<const uint8_t> bytes) {
  return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

GzipInput::GzipInput(std::span<const uint8_t> packed, const std::filesystem::path& path)
    : packed_(packed), rest_(packed), path_(path) {
  if (inflateInit2(&stream_, kGzipWindow) != Z_OK) {
    throw ConfigError(kComponent, fmt::format("no memory to unpack '{}'", path.string()));
  }
}

GzipInput::~GzipInput() { inflateEnd(&stream_); }

int64_t GzipInput::max_bytes() const { return static_cast<int64_t>(packed_.size() * kDeflateRatio); }

size_t GzipInput::unpack(uint8_t* to, size_t count) {
  size_t done = 0;
  while (done < count && !ended_) {
    if (stream_.avail_in == 0) {
      const size_t step = std::min(rest_.size(), kMaxStep);
      stream_.next_in = const_cast<uint8_t*>(rest_.data());
      stream_.avail_in = static_cast<uInt>(step);
      rest_ = rest_.subspan(step);
    }
    const size_t step = std::min(count - done, kMaxStep);
    stream_.next_out = to + done;
    stream_.avail_out = static_cast<uInt>(step);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    done += step - stream_.avail_out;
    if (status == Z_STREAM_END) {
      // A gzip file may have several members: their contents are concatenated.
      ended_ = stream_.avail_in == 0 && rest_.empty();
      if (!ended_) inflateReset(&stream_);
    } else if (status == Z_BUF_ERROR && stream_.avail_in == 0 && rest_.empty()) {
      fail_at(path_, offset(), "the file is cut: compressed data without an end");
    } else if (status != Z_OK) {
      fail_at(path_, offset(),
              fmt::format("no gzip data: {}", stream_.msg != nullptr ? stream_.msg : zError(status)));
    }
  }
  return done;
}

void GzipInput::read(uint8_t* to, size_t count) {
  const size_t done = unpack(to, count);
  if (done < count) {
    fail_at(path_, offset(),
            fmt::format("the unpacked data ends {} bytes before what its header says", count - done));
  }
}

void GzipInput::expect_end() {
  uint8_t beyond = 0;
  if (unpack(&beyond, 1) != 0) fail_at(path_, offset(), "the unpacked data is longer than its header says");
}

// --- IDX ---

constexpr uint8_t kUnsignedByte = 0x08;
constexpr size_t kMagicBytes = 4;
constexpr size_t kImageDimensions = 3;

struct IdxArray {
  std::vector<int64_t> shape;
  SharedBytes memory;
  int64_t first = 0;  // offset of the elements in the memory
};

struct IdxHeader {
  std::vector<int64_t> shape;
  int64_t elements = 0;
  size_t bytes = 0;
};

size_t header_bytes(size_t dimensions) { return kMagicBytes + 4 * dimensions; }

void check_magic(const uint8_t* magic, size_t dimensions, const Path& path) {
  if (magic[0] != 0 || magic[1] != 0) fail_at(path, 0, "no IDX file: it does not begin with two zero bytes");
  if (magic[2] != kUnsignedByte) {
    fail_at(path, 2, fmt::format("elements of type 0x{:02x}, not unsigned bytes (0x08)", magic[2]));
  }
  if (magic[3] == dimensions) return;
  const bool is_swapped = magic[3] == (dimensions == 1 ? kImageDimensions : 1);
  fail_at(path, 3,
          fmt::format("{} dimensions, where {} have {}{}", magic[3], dimensions == 1 ? "labels" : "images",
                      dimensions, is_swapped ? ": are the files of images and labels swapped?" : ""));
}

// `most`: the largest number of elements that the file can hold.
IdxHeader parse_header(const uint8_t* bytes, size_t dimensions, int64_t most, const Path& path) {
  IdxHeader header;
  header.bytes = header_bytes(dimensions);
  header.elements = 1;
  for (size_t i = 0; i < dimensions; ++i) {
    const uint8_t* at = bytes + kMagicBytes + 4 * i;
    const int64_t size = int64_t{at[0]} << 24 | at[1] << 16 | at[2] << 8 | at[3];
    const auto offset = static_cast<int64_t>(kMagicBytes + 4 * i);
    if (size == 0) fail_at(path, offset, "a dimension of 0: the set is empty");
    if (size > most / header.elements) {
      fail_at(path, offset, fmt::format("a dimension of {}: more than a file of this size holds", size));
    }
    header.elements *= size;
    header.shape.push_back(size);
  }
  return header;
}

IdxArray read_plain(SharedBytes file, size_t dimensions, const Path& path) {
  const auto size = static_cast<int64_t>(file.bytes.size());
  const size_t begin = header_bytes(dimensions);
  if (file.bytes.size() >= kMagicBytes) check_magic(file.bytes.data(), dimensions, path);
  if (file.bytes.size() < begin) fail_at(path, size, "the file ends within its header");
  // No limit here: a truncated file has the header of the complete one, and the check below says so.
  IdxHeader header = parse_header(file.bytes.data(), dimensions, INT64_MAX, path);
  const int64_t wanted = header.elements;
  if (size - static_cast<int64_t>(begin) < wanted) {
    fail_at(path, size, fmt::format("the file ends, its header says {} bytes of data", wanted));
  }
  if (size - static_cast<int64_t>(begin) > wanted) {
    fail_at(path, static_cast<int64_t>(begin) + wanted, "bytes after the data that its header says");
  }
  return {std::move(header.shape), std::move(file), static_cast<int64_t>(begin)};
}

IdxArray read_gzip(const SharedBytes& file, size_t dimensions, const Path& path) {
  GzipInput input(file.bytes, path);
  std::array<uint8_t, kMagicBytes + 4 * kImageDimensions> first{};
  input.read(first.data(), kMagicBytes);
  check_magic(first.data(), dimensions, path);
  input.read(first.data() + kMagicBytes, header_bytes(dimensions) - kMagicBytes);
  IdxHeader header = parse_header(first.data(), dimensions, input.max_bytes(), path);
  WritableBytes data = allocate_bytes(static_cast<size_t>(header.elements), path);
  input.read(data.data, static_cast<size_t>(header.elements));
  input.expect_end();
  return {std::move(header.shape), std::move(data.shared), 0};
}

IdxArray read_idx(const Path& path, size_t dimensions) {
  SharedBytes file = map_file(path);
  return GzipInput::is_gzip(file.bytes) ? read_gzip(file, dimensions, path)
                                        : read_plain(std::move(file), dimensions, path);
}

ImageLabels read_labels(const Path& path, ImageClasses classes) {
  const IdxArray array = read_idx(path, 1);
  // The offset of a bad label in a gzip file is that in the unpacked data.
  const size_t header = header_bytes(1);
  return integer_labels(array.memory.bytes.subspan(static_cast<size_t>(array.first)), {.bytes = 1},
                        std::move(classes), header, {path, "labels"});
}

}  // namespace
}  // namespace images

ImageSet open_idx(const std::filesystem::path& images_path, const std::filesystem::path& labels_path,
                  ImageClasses classes) {
  images::IdxArray array = images::read_idx(images_path, images::kImageDimensions);
  const int64_t count = array.shape[0], height = array.shape[1], width = array.shape[2];
  if (height > images::kMaxSide || width > images::kMaxSide || height * width > images::kMaxPixels) {
    images::fail_at(images_path, 8, fmt::format("images of {} by {} pixels are too large", height, width));
  }
  images::ImageLabels labels = images::read_labels(labels_path, std::move(classes));
  const auto num_labels = static_cast<int64_t>(labels.values.size());
  if (num_labels != count) {
    images::fail_at(labels_path, 4,
                    fmt::format("{} labels for the {} images of '{}': are the files of one split?",
                                num_labels, count, images_path.string()));
  }
  const images::ImageShape shape{
      .channels = 1, .height = static_cast<int>(height), .width = static_cast<int>(width)};
  std::vector<images::ImageBlock> blocks;
  blocks.push_back({std::move(array.memory), array.first, shape.bytes(), count});
  return std::make_shared<images::PackedImages>(shape, std::move(blocks), std::move(labels));
}

}  // namespace lockstep
