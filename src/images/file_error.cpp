#include "images/file_error.h"

#include <fmt/format.h>

#include "images/packed_images.h"

namespace lockstep::images {

void fail_at(const std::filesystem::path& path, int64_t offset, std::string_view reason) {
  throw ConfigError(kComponent, fmt::format("'{}' is broken at byte {}: {}", path.string(), offset, reason));
}

void fail_at_line(const std::filesystem::path& path, int64_t line, std::string_view reason) {
  throw ConfigError(kComponent, fmt::format("'{}' is broken at line {}: {}", path.string(), line, reason));
}

void fail_picture(const std::filesystem::path& path, size_t file_bytes, std::string_view reason) {
  throw ConfigError(kComponent, fmt::format("the picture '{}' of {} bytes cannot be decoded: {}",
                                            path.string(), file_bytes, reason));
}

void check_picture_size(int64_t width, int64_t height, const std::filesystem::path& path, size_t file_bytes) {
  if (width < 1 || height < 1 || width > kMaxSide || height > kMaxSide || width * height > kMaxPixels) {
    fail_picture(path, file_bytes,
                 fmt::format("it is {} by {} pixels, {} is the most", width, height, kMaxPixels));
  }
}

}  // namespace lockstep::images
