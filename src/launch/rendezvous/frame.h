#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep::launcher {

// What travels between a launcher and the coordinator: frames of
//
//   "LSR" version   4 bytes
//   length          4 bytes, big-endian, of the body
//   body            a JSON object on one line, see message.h; once both sides have proven that
//                   they know the job's token: encrypted and authenticated, see base/job_token.h
inline constexpr uint8_t kWireVersion = 2;
inline constexpr size_t kFrameHeaderBytes = 8;

// Hard limits of a body. From a stranger, from a member, and from the coordinator,
// whose map of 4 000 nodes is the largest of all.
inline constexpr size_t kMaxStrangerBytes = 4 << 10;
inline constexpr size_t kMaxMemberBytes = 256 << 10;
inline constexpr size_t kMaxCoordinatorBytes = 2 << 20;

// The peer broke the protocol; it loses its connection. The text says how.
class ProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string encode_frame(std::string_view body);

// Cuts a stream of bytes into bodies. Holds at most one frame and what came with it.
class FrameReader {
 public:
  explicit FrameReader(size_t max_bytes) : max_bytes_(max_bytes) {}

  void set_max_bytes(size_t max_bytes) { max_bytes_ = max_bytes; }
  void feed(std::string_view bytes);
  // The next whole body. Throws ProtocolError as soon as the bytes cannot become a
  // frame of this protocol; nothing is to be read after that.
  std::optional<std::string> next();

 private:
  size_t max_bytes_;
  std::string buffer_;
  size_t begin_ = 0;  // of what was not returned yet
};

}  // namespace lockstep::launcher
