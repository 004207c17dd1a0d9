#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace lockstep::images {

// Bytes and what keeps them: a mapped file, or memory of our own.
struct SharedBytes {
  std::shared_ptr<const void> owner;
  std::span<const uint8_t> bytes;
};

// The whole file, mapped. ConfigError: it cannot be opened.
SharedBytes map_file(const std::filesystem::path& path);

// The whole file, read into memory of its own: cheaper than a map for what is used once.
// ConfigError: it cannot be read, or has more than kMaxReadBytes.
inline constexpr int64_t kMaxReadBytes = int64_t{256} << 20;
SharedBytes read_file(const std::filesystem::path& path);

// New memory, not written yet; `data` is the same memory to write to. ConfigError naming
// the file that wants it: there is not enough.
struct WritableBytes {
  SharedBytes shared;
  uint8_t* data = nullptr;
};
WritableBytes allocate_bytes(size_t count, const std::filesystem::path& path);

}  // namespace lockstep::images
