#include "comm/lifeline_wire.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace lockstep::comm {
namespace {

constexpr std::array<uint8_t, 8> kMagic{'L', 'S', 'L', 'I', 'F', 'E', '0', '1'};

void put(uint8_t* to, uint32_t value) {
  value = htonl(value);
  std::memcpy(to, &value, sizeof(value));
}

uint32_t take(const uint8_t* from) {
  uint32_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  return ntohl(value);
}

}  // namespace

Hello encode_hello(const Nonce& nonce, int rank) {
  Hello bytes{};
  auto* end = std::copy(kMagic.begin(), kMagic.end(), bytes.data());
  end = std::copy(nonce.begin(), nonce.end(), end);
  put(end, static_cast<uint32_t>(rank));
  return bytes;
}

std::optional<int> decode_hello(const Hello& bytes, const Nonce& nonce) {
  const uint8_t* at = bytes.data();
  if (!std::equal(kMagic.begin(), kMagic.end(), at) ||
      !std::equal(nonce.begin(), nonce.end(), at + kMagic.size())) {
    return std::nullopt;
  }
  return static_cast<int>(take(at + kMagic.size() + kNonceBytes));
}

NoticeBytes encode_notice(Notice notice) {
  NoticeBytes bytes{};
  put(bytes.data(), static_cast<uint32_t>(notice.kind));
  put(bytes.data() + 4, static_cast<uint32_t>(notice.rank));
  return bytes;
}

std::optional<Notice> decode_notice(const NoticeBytes& bytes) {
  const uint32_t kind = take(bytes.data());
  if (kind < static_cast<uint32_t>(NoticeKind::kWelcome) || kind > static_cast<uint32_t>(NoticeKind::kLeft)) {
    return std::nullopt;
  }
  return Notice{static_cast<NoticeKind>(kind), static_cast<int>(take(bytes.data() + 4))};
}

Nonce make_nonce() {
  std::random_device device;
  Nonce nonce{};
  for (uint8_t& byte : nonce) {
    byte = static_cast<uint8_t>(device());
  }
  return nonce;
}

bool send_whole(int fd, const uint8_t* data, size_t size) {
  return send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

void keep_alive(int fd) {
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

}  // namespace lockstep::comm
