#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

inline constexpr size_t kChecksumDigits = 32;

// xxh3-128 of bytes that are added in parts. Finds damage, not deliberate changes.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void update(const void* data, size_t bytes);
  // Of all bytes until now: 32 hex digits, as `xxh128sum` prints them.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_of(std::string_view bytes);

// Whether this is 32 lower-case hex digits.
bool is_checksum(std::string_view text);

}  // namespace lockstep::checkpoint
