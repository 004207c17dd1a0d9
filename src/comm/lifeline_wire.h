#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::comm {

// What travels on a lifeline. Integers are big-endian.

inline constexpr size_t kNonceBytes = 16;
using Nonce = std::array<uint8_t, kNonceBytes>;

// First message of a rank to rank 0.
inline constexpr size_t kHelloBytes = 8 + kNonceBytes + 4;
using Hello = std::array<uint8_t, kHelloBytes>;

Hello encode_hello(const Nonce& nonce, int rank);
// The rank that says hello; nullopt for anything but this job's hello.
std::optional<int> decode_hello(const Hello& bytes, const Nonce& nonce);

// Messages of rank 0, and the goodbye of a rank.
enum class NoticeKind : uint32_t { kWelcome = 1, kDied = 2, kLeft = 3 };

struct Notice {
  NoticeKind kind = NoticeKind::kWelcome;
  int rank = 0;
};

inline constexpr size_t kNoticeBytes = 8;
using NoticeBytes = std::array<uint8_t, kNoticeBytes>;

NoticeBytes encode_notice(Notice notice);
std::optional<Notice> decode_notice(const NoticeBytes& bytes);

Nonce make_nonce();

// Writes all bytes without blocking and without SIGPIPE. These messages are a few
// bytes on an otherwise silent connection: if they do not fit the peer is gone.
bool send_whole(int fd, const uint8_t* data, size_t size);

// Makes the kernel notice a peer's host that vanished: about 25 s.
void keep_alive(int fd);

}  // namespace lockstep::comm
