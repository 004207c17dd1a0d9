#include "comm/secure_connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/network.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Side = base::JobToken::Side;

constexpr std::array<char, 7> kSecureMagic{'L', 'S', 'R', 'A', 'N', 'K', 'S'};
constexpr size_t kNonceAt = kSecureMagic.size() + 1;
constexpr size_t kGreetingBytes = kNonceAt + sizeof(base::Nonce);
// magic, version, purpose, rank, nonce, proof
constexpr size_t kAnswerBytes = kNonceAt + 1 + 4 + sizeof(base::Nonce) + sizeof(base::Proof);
// Limit of one message of an authenticated rank.
constexpr size_t kMaxMessageBytes = 1 << 30;
// A rank for which more than this is queued does not read.
constexpr size_t kMaxUnsentBytes = size_t{2} << 30;
constexpr size_t kReadBytes = 64 << 10;
// A number in a message.
constexpr size_t kNumberBytes = 8;

std::string header() {
  std::string bytes(kSecureMagic.begin(), kSecureMagic.end());
  bytes += static_cast<char>(kSecureWireVersion);
  return bytes;
}

void check_header(std::string_view bytes) {
  if (!std::equal(kSecureMagic.begin(), kSecureMagic.end(), bytes.begin())) {
    throw NotOfThisJob("the listener is not rank 0 of a Lockstep job");
  }
  if (const auto version = static_cast<uint8_t>(bytes[kSecureMagic.size()]); version != kSecureWireVersion) {
    throw NotOfThisJob(fmt::format("rank 0 has version {} of the ranks' protocol, this rank has version {}",
                                   version, kSecureWireVersion));
  }
}

void put_u32(std::string& bytes, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
}

uint32_t take_u32(std::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes.substr(0, 4)) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

template <typename Array>
void put_array(std::string& bytes, const Array& array) {
  bytes.append(reinterpret_cast<const char*>(array.data()), array.size());
}

template <typename Array>
Array take_array(std::string_view bytes) {
  Array array;
  std::memcpy(array.data(), bytes.data(), array.size());
  return array;
}

std::string statement_of(Purpose purpose, int rank) {
  return fmt::format("version {} purpose {} rank {}", kSecureWireVersion, static_cast<int>(purpose), rank);
}

std::string frame_of(base::MessageSeal& seal, std::string_view message) {
  std::string frame;
  frame.reserve(4 + message.size() + base::MessageSeal::kOverheadBytes);
  put_u32(frame, static_cast<uint32_t>(message.size() + base::MessageSeal::kOverheadBytes));
  frame += seal.seal(message);
  return frame;
}

// Removes the first complete message from the bytes and returns it; nullopt: there is none.
std::optional<std::string> take_message(std::string& bytes, base::MessageSeal& seal) {
  if (bytes.size() < 4) return std::nullopt;
  const size_t length = take_u32(bytes);
  if (length > kMaxMessageBytes + base::MessageSeal::kOverheadBytes) {
    throw ConnectionError(fmt::format("a message of {} bytes", length));
  }
  if (bytes.size() < 4 + length) return std::nullopt;
  std::optional<std::string> message = seal.open(std::string_view(bytes).substr(4, length));
  if (!message) throw ConnectionError("a message that the other side did not send");
  bytes.erase(0, 4 + length);
  return message;
}

// Polls at least once. False: the deadline has passed.
bool wait_until(int fd, short events, Clock::time_point deadline) {
  pollfd entry{fd, events, 0};
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    const int limit = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
    if (::poll(&entry, 1, limit) > 0) return true;
    if (left.count() <= 0) return false;
  }
}

void send_all(int fd, std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!wait_until(fd, POLLOUT, deadline)) throw ConnectionError("rank 0 does not read");
    } else if (errno != EINTR) {
      throw ConnectionError(fmt::format("the connection to rank 0 ended: {}", std::strerror(errno)));
    }
  }
}

// Appends the bytes that arrive. False: none arrived before the deadline.
bool read_some(int fd, std::string& bytes, Clock::time_point deadline) {
  if (!wait_until(fd, POLLIN, deadline)) return false;
  std::array<char, kReadBytes> part;
  const ssize_t count = ::recv(fd, part.data(), part.size(), MSG_DONTWAIT);
  if (count > 0) {
    bytes.append(part.data(), static_cast<size_t>(count));
  } else if (count == 0) {
    throw ConnectionError("rank 0 closed the connection");
  } else if (errno != EAGAIN && errno != EINTR) {
    throw ConnectionError(fmt::format("the connection to rank 0 ended: {}", std::strerror(errno)));
  }
  return true;
}

void read_whole(int fd, std::string& bytes, size_t size, Clock::time_point deadline) {
  while (bytes.size() < size) {
    if (!read_some(fd, bytes, deadline))
      throw NotOfThisJob("something listens there, but it does not answer as rank 0 does");
  }
}

void set_option(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

// Small messages are sent at once, and the kernel notices within about 25 s that the peer's host
// has vanished.
void prepare(int fd) {
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& host, uint16_t port, Clock::time_point deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  for (;;) {
    addrinfo* list = nullptr;
    const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
    if (error == 0) return {list, ::freeaddrinfo};
    const std::string reason = base::lookup_error(error);
    if (base::is_unknown_host(error) || Clock::now() >= deadline) {
      throw ConnectionError(fmt::format("the host '{}' is not known here: {}", host, reason));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

// Null, with errno set, if it fails.
base::UniqueFd connect_once(const addrinfo& address, Clock::time_point deadline) {
  base::UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return {};
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS) return {};
  int error = ETIMEDOUT;
  socklen_t length = sizeof error;
  if (wait_until(fd.get(), POLLOUT, deadline)) ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0) return fd;
  errno = error;
  return {};
}

}  // namespace

base::UniqueFd connect_to(const std::string& host, uint16_t port, SecureClient::Deadline deadline) {
  constexpr std::chrono::milliseconds kLongestPause{500};
  const Addresses addresses = resolve(host, port, deadline);
  std::chrono::milliseconds pause{10};
  for (;;) {
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
      if (base::UniqueFd fd = connect_once(*address, deadline)) return fd;
    }
    const int error = errno;
    if (Clock::now() + pause >= deadline) throw ConnectionError(std::strerror(error));
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

// --- a rank's end ---

SecureClient::SecureClient(base::UniqueFd fd, const base::JobToken& token, Purpose purpose, int rank,
                           Deadline deadline)
    : fd_(std::move(fd)) {
  prepare(fd_.get());
  try {
    read_whole(fd_.get(), received_, kGreetingBytes, deadline);
    check_header(received_);
    const auto server_nonce = take_array<base::Nonce>(std::string_view(received_).substr(kNonceAt));
    const base::Nonce own_nonce = base::make_nonce();
    const std::string statement = statement_of(purpose, rank);
    std::string answer = header();
    answer += static_cast<char>(purpose);
    put_u32(answer, static_cast<uint32_t>(rank));
    put_array(answer, own_nonce);
    put_array(answer, token.prove(Side::kMember, server_nonce, own_nonce, statement));
    send_all(fd_.get(), answer, deadline);
    received_.erase(0, kGreetingBytes);
    read_whole(fd_.get(), received_, sizeof(base::Proof), deadline);
    if (!token.verify(take_array<base::Proof>(received_), Side::kCoordinator, server_nonce, own_nonce,
                      statement)) {
      throw NotOfThisJob("the listener does not know the job's secret");
    }
    received_.erase(0, sizeof(base::Proof));
    outgoing_ = token.seal(Side::kMember, server_nonce, own_nonce);
    incoming_ = token.seal(Side::kCoordinator, server_nonce, own_nonce);
  } catch (const NotOfThisJob&) {
    throw;
  } catch (const ConnectionError& error) {
    throw NotOfThisJob(
        fmt::format("the listener closed the connection before it proved that it belongs to this "
                    "job: {}",
                    error.what()));
  }
}

void SecureClient::send(std::string_view message, Deadline deadline) {
  send_all(fd_.get(), frame_of(*outgoing_, message), deadline);
}

std::optional<std::string> SecureClient::receive(Deadline deadline) {
  for (;;) {
    if (std::optional<std::string> message = take_message(received_, *incoming_)) return message;
    if (!read_some(fd_.get(), received_, deadline)) return std::nullopt;
  }
}

// --- rank 0's end ---

SecurePeer::SecurePeer(base::UniqueFd fd, const base::JobToken& token, Purpose purpose, int world_size)
    : fd_(std::move(fd)),
      token_(token),
      purpose_(purpose),
      world_size_(world_size),
      nonce_(base::make_nonce()),
      since_(Clock::now()) {
  prepare(fd_.get());
  ::fcntl(fd_.get(), F_SETFL, ::fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
  unsent_ = header();
  put_array(unsent_, nonce_);
  flush();
}

bool SecurePeer::read() {
  if (broken_) return false;
  std::array<char, kReadBytes> part;
  // Before authentication only the bytes of the client's answer are read.
  const size_t limit = rank_ < 0 ? kAnswerBytes - received_.size() : part.size();
  const ssize_t count = ::recv(fd_.get(), part.data(), std::min(limit, part.size()), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (count <= 0) return false;
  received_.append(part.data(), static_cast<size_t>(count));
  return rank_ >= 0 || received_.size() < kAnswerBytes || take_proof();
}

bool SecurePeer::take_proof() {
  const std::string_view answer = received_;
  if (answer.substr(0, kNonceAt) != header()) return false;
  size_t at = kNonceAt;
  const auto purpose = static_cast<Purpose>(answer[at++]);
  const uint32_t rank = take_u32(answer.substr(at));
  at += 4;
  const auto its_nonce = take_array<base::Nonce>(answer.substr(at));
  const auto proof = take_array<base::Proof>(answer.substr(at + its_nonce.size()));
  if (purpose != purpose_ || rank >= static_cast<uint32_t>(world_size_)) return false;
  const std::string statement = statement_of(purpose, static_cast<int>(rank));
  if (!token_.verify(proof, Side::kMember, nonce_, its_nonce, statement)) return false;
  rank_ = static_cast<int>(rank);
  received_.clear();
  put_array(unsent_, token_.prove(Side::kCoordinator, nonce_, its_nonce, statement));
  outgoing_ = token_.seal(Side::kCoordinator, nonce_, its_nonce);
  incoming_ = token_.seal(Side::kMember, nonce_, its_nonce);
  flush();
  return true;
}

std::optional<std::string> SecurePeer::next() {
  if (rank_ < 0) return std::nullopt;
  try {
    return take_message(received_, *incoming_);
  } catch (const ConnectionError&) {
    broken_ = true;
    received_.clear();
    ::shutdown(fd_.get(), SHUT_RDWR);
    return std::nullopt;
  }
}

void SecurePeer::send(std::string_view message) {
  if (rank_ < 0 || broken_) return;
  unsent_ += frame_of(*outgoing_, message);
  flush();
}

void SecurePeer::flush() {
  size_t sent = 0;
  while (sent < unsent_.size()) {
    const ssize_t count =
        ::send(fd_.get(), unsent_.data() + sent, unsent_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EAGAIN) broken_ = true;
    if (count < 0) break;
    sent += static_cast<size_t>(count);
  }
  unsent_.erase(0, sent);
  if (unsent_.size() > kMaxUnsentBytes) broken_ = true;
  if (broken_) {
    unsent_.clear();
    ::shutdown(fd_.get(), SHUT_RDWR);  // read() notices it
  }
}

// --- the content of messages ---

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
  // Each text has at least the bytes of its length.
  if (count < 0 || static_cast<uint64_t>(count) > rest_.size() / kNumberBytes) {
    throw MalformedMessage("more texts than there are bytes");
  }
  std::vector<std::string> values;
  values.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values.push_back(text());
  return values;
}

}  // namespace lockstep::comm
