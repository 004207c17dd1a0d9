#include "launch/rendezvous/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace lockstep::launcher {
namespace {

constexpr std::array<char, 4> kFrameMagic{'L', 'S', 'R', static_cast<char>(kWireVersion)};

uint32_t read_length(std::string_view bytes) {
  uint32_t length = 0;
  for (const char byte : bytes.substr(0, 4)) length = length << 8 | static_cast<uint8_t>(byte);
  return length;
}

void check_magic(std::string_view bytes) {
  const size_t known = std::min(bytes.size(), kFrameMagic.size());
  if (bytes.substr(0, std::min<size_t>(known, 3)) !=
      std::string_view(kFrameMagic.data(), std::min<size_t>(known, 3))) {
    throw ProtocolError("the peer does not speak Lockstep's rendezvous protocol");
  }
  if (known == 4 && bytes[3] != kFrameMagic[3]) {
    throw ProtocolError(
        fmt::format("the peer speaks version {} of the rendezvous protocol, this is version {}",
                    static_cast<uint8_t>(bytes[3]), kWireVersion));
  }
}

}  // namespace

std::string encode_frame(std::string_view body) {
  std::string frame(kFrameMagic.begin(), kFrameMagic.end());
  frame.reserve(kFrameHeaderBytes + body.size());
  for (int shift = 24; shift >= 0; shift -= 8) frame += static_cast<char>(body.size() >> shift & 0xff);
  frame += body;
  return frame;
}

void FrameReader::feed(std::string_view bytes) {
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
  } else if (begin_ > (64 << 10)) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_ += bytes;
}

std::optional<std::string> FrameReader::next() {
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  check_magic(rest);
  if (rest.size() < kFrameHeaderBytes) return std::nullopt;
  const size_t length = read_length(rest.substr(4));
  if (length > max_bytes_) {
    throw ProtocolError(fmt::format("a frame of {} bytes, {} are allowed", length, max_bytes_));
  }
  if (rest.size() < kFrameHeaderBytes + length) return std::nullopt;
  begin_ += kFrameHeaderBytes + length;
  std::string body(rest.substr(kFrameHeaderBytes, length));
  if (begin_ == buffer_.size()) {
    // An idle connection holds no memory: there may be thousands of them.
    buffer_ = std::string();
    begin_ = 0;
  }
  return body;
}

}  // namespace lockstep::launcher
