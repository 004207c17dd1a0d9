#include "launch/rendezvous/fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/job_token.h"
#include "launch/rendezvous/frame.h"

namespace lockstep::launcher::wire {
namespace {

[[noreturn]] void fail(const char* name, std::string_view why) {
  throw ProtocolError(fmt::format("field \"{}\" {}", name, why));
}

}  // namespace

Fields::Fields(const Json& object) : object_(object) {
  if (!object.is_object()) throw ProtocolError("a message that is no JSON object");
}

const Json& Fields::at(const char* name) const {
  const Json* const found = object_.find(name);
  if (found == nullptr) fail(name, "is missing");
  return *found;
}

int64_t Fields::integer(const char* name, int64_t min, int64_t max) const {
  const Json& value = at(name);
  if (!value.is_number_integer()) fail(name, "is no integer");
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    fail(name, "is out of range");
  }
  const auto number = value.get<int64_t>();
  if (number < min || number > max) fail(name, fmt::format("is out of range: {}", number));
  return number;
}

bool Fields::boolean(const char* name) const {
  const Json& value = at(name);
  if (!value.is_boolean()) fail(name, "is neither true nor false");
  return value.get<bool>();
}

std::string Fields::text(const char* name, size_t max_bytes) const {
  const Json& value = at(name);
  if (!value.is_string()) fail(name, "is no text");
  const auto& text = value.text();
  if (text.size() > max_bytes)
    fail(name, fmt::format("has {} bytes, {} are allowed", text.size(), max_bytes));
  return text;
}

std::string Fields::word(const char* name, size_t max_bytes) const {
  std::string text = this->text(name, max_bytes);
  if (!is_word(text)) fail(name, "has control characters");
  return text;
}

std::array<uint8_t, 32> Fields::bytes(const char* name) const {
  std::array<uint8_t, 32> bytes;
  if (!base::from_hex(text(name, 2 * bytes.size()), bytes)) fail(name, "is not 64 hexadecimal digits");
  return bytes;
}

const Json& Fields::array(const char* name, size_t max_size) const {
  const Json& value = at(name);
  if (!value.is_array() || value.size() > max_size)
    fail(name, fmt::format("is no array of up to {}", max_size));
  return value;
}

bool is_word(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

}  // namespace lockstep::launcher::wire
