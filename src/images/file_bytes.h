#pragma once

#include <lockstep/error.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

// The bytes of files that may be truncated or hostile, and the errors that name the place in them.
namespace lockstep::images {

inline constexpr char kComponent[] = "images";

// ConfigError: the file is damaged at this byte.
[[noreturn]] void fail_at(const std::filesystem::path& path, int64_t offset, std::string_view reason);
// ConfigError: the text file is damaged at this line, from 1.
[[noreturn]] void fail_at_line(const std::filesystem::path& path, int64_t line, std::string_view reason);

// Bytes and their owner: a mapped file or allocated memory.
struct SharedBytes {
  std::shared_ptr<const void> owner;
  std::span<const uint8_t> bytes;
};

// Maps the whole file. ConfigError: it cannot be opened.
SharedBytes map_file(const std::filesystem::path& path);

// Reads the whole file into memory: cheaper than a map for bytes that are used once. ConfigError:
// the file cannot be read, or has more than kMaxReadBytes.
inline constexpr int64_t kMaxReadBytes = int64_t{256} << 20;
SharedBytes read_file(const std::filesystem::path& path);

// Allocates uninitialised memory; `data` is the same memory for writing. ConfigError: there is not
// enough memory; the text names the file that needs it.
struct WritableBytes {
  SharedBytes shared;
  uint8_t* data = nullptr;
};
WritableBytes allocate_bytes(size_t count, const std::filesystem::path& path);

// Reads numbers one after the other, least significant byte first. Never reads outside of the
// bytes: a read beyond their end is a ConfigError with the offset. File and path must outlive it.
class ByteCursor {
 public:
  ByteCursor(std::span<const uint8_t> file, const std::filesystem::path& path, uint64_t offset)
      : ByteCursor(file, path, offset, file.size()) {}
  // Ends at `end`, or at the end of the file.
  ByteCursor(std::span<const uint8_t> file, const std::filesystem::path& path, uint64_t offset, uint64_t end)
      : file_(file), path_(path), at_(offset), end_(end < file.size() ? end : file.size()) {
    if (at_ > end_) fail("an address outside of the file");
  }

  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint16_t u16() { return static_cast<uint16_t>(number(2)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  // A number of 1 to 8 bytes.
  uint64_t number(size_t size) {
    uint64_t value = 0;
    const std::span<const uint8_t> read = bytes(size);
    for (size_t i = 0; i < size; ++i) value |= uint64_t{read[i]} << (8 * i);
    return value;
  }
  std::span<const uint8_t> bytes(uint64_t count) {
    if (count > left()) fail("it ends within the data that it announces");
    const std::span<const uint8_t> read = file_.subspan(static_cast<size_t>(at_), static_cast<size_t>(count));
    at_ += count;
    return read;
  }
  void skip(uint64_t count) { bytes(count); }
  // Whether this text comes next; if so, it is skipped.
  bool take(std::string_view text) {
    if (text.size() > left() ||
        std::string_view(reinterpret_cast<const char*>(file_.data()) + at_, text.size()) != text) {
      return false;
    }
    at_ += text.size();
    return true;
  }
  void expect(std::string_view text) {
    if (!take(text)) fail("unexpected content");
  }

  uint64_t at() const { return at_; }
  uint64_t left() const { return end_ - at_; }
  [[noreturn]] void fail(std::string_view reason) const { fail_at(path_, static_cast<int64_t>(at_), reason); }

 private:
  std::span<const uint8_t> file_;
  const std::filesystem::path& path_;
  uint64_t at_;
  uint64_t end_;
};

}  // namespace lockstep::images
