#include "images/gzip.h"

#include <fmt/format.h>

#include <algorithm>

#include "images/file_error.h"
#include "images/packed_images.h"

namespace lockstep::images {
namespace {

constexpr int kGzipWindow = 16 + MAX_WBITS;  // a gzip header and its checksum, nothing else
constexpr size_t kMaxStep = 1 << 30;         // zlib counts in 32 bits

}  // namespace

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
      // gzip files may stand one after the other; together they are one.
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

}  // namespace lockstep::images
