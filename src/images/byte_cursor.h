#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "images/file_error.h"

namespace lockstep::images {

// Numbers of a file one after the other, least significant byte first. Nothing is read
// outside of the bytes: where they end before what is asked for, that is a ConfigError
// with the place. File and path outlive it.
class ByteCursor {
 public:
  ByteCursor(std::span<const uint8_t> file, const std::filesystem::path& path, uint64_t offset)
      : ByteCursor(file, path, offset, file.size()) {}
  // Ends at `end`, or with the file.
  ByteCursor(std::span<const uint8_t> file, const std::filesystem::path& path, uint64_t offset, uint64_t end)
      : file_(file), path_(path), at_(offset), end_(end < file.size() ? end : file.size()) {
    if (at_ > end_) fail("an address outside of the file");
  }

  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint16_t u16() { return static_cast<uint16_t>(number(2)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  // Of 1 to 8 bytes.
  uint64_t number(size_t size) {
    uint64_t value = 0;
    const std::span<const uint8_t> read = bytes(size);
    for (size_t i = 0; i < size; ++i) value |= uint64_t{read[i]} << (8 * i);
    return value;
  }
  std::span<const uint8_t> bytes(uint64_t count) {
    if (count > left()) fail("it ends within what it says it has");
    const std::span<const uint8_t> read = file_.subspan(static_cast<size_t>(at_), static_cast<size_t>(count));
    at_ += count;
    return read;
  }
  void skip(uint64_t count) { bytes(count); }
  // Whether these come next; they are read if so.
  bool take(std::string_view text) {
    if (text.size() > left() ||
        std::string_view(reinterpret_cast<const char*>(file_.data()) + at_, text.size()) != text) {
      return false;
    }
    at_ += text.size();
    return true;
  }
  void expect(std::string_view text) {
    if (!take(text)) fail("not what should be here");
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
