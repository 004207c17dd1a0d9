#include "launcher/rendezvous/heartbeats.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

namespace lockstep::launcher {

Heartbeats::Due Heartbeats::due(Time now) const {
  if (next_ == 0 || now - last_regular_ >= interval_) return Due::kRegular;
  if (unanswered_.empty()) return Due::kNone;
  const bool late = now - unanswered_.front().when >= 2 * round_trip_;
  return late && now - unanswered_.back().when >= look_period() ? Due::kUrgent : Due::kNone;
}

int64_t Heartbeats::send(Time now, Due kind) {
  unanswered_.push_back({next_, now});
  if (kind == Due::kRegular) last_regular_ = now;
  return next_++;
}

std::optional<Heartbeats::Time> Heartbeats::answered(int64_t sequence, Time now) {
  while (!unanswered_.empty() && unanswered_.front().sequence < sequence) unanswered_.pop_front();
  if (unanswered_.empty() || unanswered_.front().sequence != sequence) return std::nullopt;
  const Time sent = unanswered_.front().when;
  unanswered_.pop_front();
  // A quick answer counts at once: the slow ones before it were the exception.
  const Duration round_trip = now - sent;
  round_trip_ = std::max(look_period() / 2, std::min(round_trip, (3 * round_trip_ + round_trip) / 4));
  return sent;
}

namespace {

// "LSP" version, member, sequence, proof.
constexpr std::string_view kPulseMagic{"LSP\x01", 4};
constexpr size_t kStatement = 4 + 8 + 8;
constexpr size_t kBytes = kStatement + sizeof(base::Proof);

void append(std::string& bytes, uint64_t number) {
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
}

uint64_t number_at(std::string_view bytes, size_t at) {
  uint64_t number = 0;
  for (size_t i = 0; i < 8; ++i) number = number << 8 | static_cast<uint8_t>(bytes[at + i]);
  return number;
}

sockaddr* raw(SocketAddress& address) { return reinterpret_cast<sockaddr*>(&address.storage); }
const sockaddr* raw(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

base::UniqueFd open_datagrams(int family) {
  return base::UniqueFd(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

std::string encode_pulse(const Pulse& pulse, const PulseKey& key) {
  std::string bytes(kPulseMagic);
  append(bytes, pulse.member);
  append(bytes, static_cast<uint64_t>(pulse.sequence));
  const base::Proof proof = key.token.prove(key.side, key.coordinator, key.member, bytes);
  return bytes.append(proof.begin(), proof.end());
}

std::optional<Pulse> read_pulse(std::string_view datagram) {
  if (datagram.size() != kBytes || !datagram.starts_with(kPulseMagic)) return std::nullopt;
  const uint64_t sequence = number_at(datagram, 12);
  if (sequence > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return Pulse{number_at(datagram, 4), static_cast<int64_t>(sequence)};
}

bool verify_pulse(std::string_view datagram, const PulseKey& key) {
  base::Proof proof;
  std::copy_n(datagram.begin() + kStatement, proof.size(), proof.begin());
  return key.token.verify(proof, key.side, key.coordinator, key.member, datagram.substr(0, kStatement));
}

base::UniqueFd open_pulse_socket(int listener) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (::getsockname(listener, raw(address), &address.length) != 0) return {};
  base::UniqueFd fd = open_datagrams(address.storage.ss_family);
  if (!fd) return {};
  if (address.storage.ss_family == AF_INET6) {
    const int off = 0;
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  return ::bind(fd.get(), raw(address), address.length) == 0 ? std::move(fd) : base::UniqueFd();
}

base::UniqueFd open_pulse_socket(const SocketAddress& peer) { return open_datagrams(peer.storage.ss_family); }

std::optional<Datagram> receive_datagram(int fd) {
  std::array<char, kBytes + 1> bytes;
  Datagram datagram;
  datagram.from.length = sizeof datagram.from.storage;
  const ssize_t count =
      ::recvfrom(fd, bytes.data(), bytes.size(), MSG_DONTWAIT, raw(datagram.from), &datagram.from.length);
  if (count < 0) return std::nullopt;
  datagram.bytes.assign(bytes.data(), static_cast<size_t>(count));
  return datagram;
}

void send_datagram(int fd, const std::string& bytes, const SocketAddress& to) {
  [[maybe_unused]] const ssize_t sent =
      ::sendto(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL, raw(to), to.length);
}

}  // namespace lockstep::launcher
