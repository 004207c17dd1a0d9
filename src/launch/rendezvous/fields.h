#pragma once

#include <lockstep/json.h>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::launcher::wire {

// Reads the members of a JSON object that somebody else wrote. Whatever is missing,
// of another type or out of range is a ProtocolError that names the field.
class Fields {
 public:
  explicit Fields(const Json& object);

  bool has(const char* name) const { return object_.contains(name); }
  int64_t integer(const char* name, int64_t min, int64_t max) const;
  bool boolean(const char* name) const;
  // At most max_bytes long.
  std::string text(const char* name, size_t max_bytes) const;
  // A name or an address: text without control characters.
  std::string word(const char* name, size_t max_bytes) const;
  std::array<uint8_t, 32> bytes(const char* name) const;
  const Json& array(const char* name, size_t max_size) const;
  const Json& at(const char* name) const;

 private:
  const Json& object_;
};

// Whether nothing in it would break a line.
bool is_word(std::string_view text);

}  // namespace lockstep::launcher::wire
