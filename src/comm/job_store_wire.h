#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm {

// What a rank asks the job's store, and the answer. Each is one message of a connection that
// is proven (secure_connection.h).
enum class StoreCall : uint8_t {
  kSet = 1,     // key, value ->
  kCompareSet,  // key, expected, desired -> value
  kGet,         // timeout, keys -> values: waits until all are there
  kAdd,         // key, number -> number
  kDelete,      // key -> number: 1 where it was there
  kCheck,       // keys -> number: 1 where all are there
  kCount,       // -> number
  kWait,        // timeout, keys ->
  kAppend,      // key, value ->
  kMultiSet,    // key, value, key, value... ->
  kList,        // -> keys
};

// First byte of an answer.
enum class StoreAnswer : uint8_t { kDone = 0, kTimeout = 1, kRefused = 2 };

struct MalformedMessage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Numbers are 8 bytes, big-endian; texts are preceded by their length.
class MessageWriter {
 public:
  explicit MessageWriter(uint8_t first) : bytes_(1, static_cast<char>(first)) {}

  MessageWriter& number(int64_t value);
  MessageWriter& text(std::string_view value);
  MessageWriter& texts(const std::vector<std::string>& values);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Throws MalformedMessage where something is missing.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : rest_(bytes) {}

  uint8_t byte();
  int64_t number();
  std::string text();
  std::vector<std::string> texts();
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view take(size_t size);

  std::string_view rest_;
};

}  // namespace lockstep::comm
