#pragma once

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <span>

namespace lockstep::images {

// A gzip file that is unpacked from its beginning to its end, never further than asked.
// What is broken is a ConfigError with the byte of the file.
class GzipInput {
 public:
  static bool is_gzip(std::span<const uint8_t> bytes);

  // Both outlive it.
  GzipInput(std::span<const uint8_t> packed, const std::filesystem::path& path);
  ~GzipInput();
  GzipInput(const GzipInput&) = delete;
  GzipInput& operator=(const GzipInput&) = delete;

  // The next bytes, all of them.
  void read(uint8_t* to, size_t count);
  // Fails unless everything has been read and the checksum is right.
  void expect_end();
  // What the file can unpack to at most, whatever is in it.
  int64_t max_bytes() const;

 private:
  // Unpacks up to count bytes; fewer at the end of the file only.
  size_t unpack(uint8_t* to, size_t count);
  int64_t offset() const { return static_cast<int64_t>(packed_.size() - rest_.size() - stream_.avail_in); }

  std::span<const uint8_t> packed_;
  std::span<const uint8_t> rest_;  // not yet handed to zlib
  const std::filesystem::path& path_;
  z_stream stream_{};
  bool ended_ = false;
};

}  // namespace lockstep::images
