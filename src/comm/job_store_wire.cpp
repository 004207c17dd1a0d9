#include "comm/job_store_wire.h"

namespace lockstep::comm {
namespace {

constexpr size_t kNumberBytes = 8;

}  // namespace

MessageWriter& MessageWriter::number(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) bytes_ += static_cast<char>(bits >> shift & 0xff);
  return *this;
}

MessageWriter& MessageWriter::text(std::string_view value) {
  number(static_cast<int64_t>(value.size()));
  bytes_ += value;
  return *this;
}

MessageWriter& MessageWriter::texts(const std::vector<std::string>& values) {
  number(static_cast<int64_t>(values.size()));
  for (const std::string& value : values) text(value);
  return *this;
}

std::string_view MessageReader::take(size_t size) {
  if (size > rest_.size()) throw MalformedMessage("it ends too early");
  const std::string_view taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

uint8_t MessageReader::byte() { return static_cast<uint8_t>(take(1).front()); }

int64_t MessageReader::number() {
  uint64_t bits = 0;
  for (const char byte : take(kNumberBytes)) bits = bits << 8 | static_cast<uint8_t>(byte);
  return static_cast<int64_t>(bits);
}

std::string MessageReader::text() {
  const int64_t size = number();
  if (size < 0) throw MalformedMessage("a text of a negative length");
  return std::string(take(static_cast<size_t>(size)));
}

std::vector<std::string> MessageReader::texts() {
  const int64_t count = number();
  // Each has at least its length.
  if (count < 0 || static_cast<uint64_t>(count) > rest_.size() / kNumberBytes) {
    throw MalformedMessage("more texts than there are bytes");
  }
  std::vector<std::string> values;
  values.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values.push_back(text());
  return values;
}

}  // namespace lockstep::comm
