#include "launcher/rendezvous/connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/network.h"
#include "base/process.h"

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstConnectPause{20};
constexpr milliseconds kLongestConnectPause{1000};
// For one address; the kernel's own limit is two minutes.
constexpr milliseconds kConnectTimeout{3000};

// A client on an ephemeral port can connect to itself if no process listens there.
bool is_connected_to_itself(int fd) {
  sockaddr_storage own{}, peer{};
  socklen_t own_length = sizeof own, peer_length = sizeof peer;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
         own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0;
}

std::vector<SocketAddress> to_addresses(const addrinfo* found) {
  std::vector<SocketAddress> addresses;
  for (; found != nullptr; found = found->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
    address.length = found->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

}  // namespace

std::string SocketAddress::to_string() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    return fmt::format("[{}]:{}", text.data(), ntohs(v6.sin6_port));
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
  ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
  return fmt::format("{}:{}", text.data(), ntohs(v4.sin_port));
}

// Shared with the thread that looks up the name, which may outlive the connector.
struct Connector::Lookup {
  base::UniqueFd done;  // readable when the thread has finished; empty if there is no thread
  std::vector<SocketAddress> addresses;
  std::string error;
  bool is_unknown = false;  // the host does not exist; false if the name service failed

  void run(const std::string& host, const std::string& port, int flags) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | flags;
    addrinfo* found = nullptr;
    if (const int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0) {
      error = base::lookup_error(code);
      is_unknown = base::is_unknown_host(code);
      return;
    }
    addresses = to_addresses(found);
    ::freeaddrinfo(found);
  }
};

Connector::Connector(base::EventLoop& loop, std::string host, uint16_t port, Connected connected,
                     UnknownHost unknown_host)
    : loop_(loop),
      host_(std::move(host)),
      port_(port),
      connected_(std::move(connected)),
      unknown_host_(std::move(unknown_host)) {}

Connector::~Connector() { stop(); }

void Connector::start() { look_up(); }

void Connector::try_again(const std::string& reason) {
  record_failure(current_, reason);
  if (next_ < addresses_.size()) {
    try_next_address();
  } else {
    pause();
  }
}

void Connector::stop() {
  loop_.cancel(timer_);
  if (lookup_ && lookup_->done) loop_.forget(lookup_->done.get());
  lookup_.reset();
  if (socket_) loop_.forget(socket_.get());
  socket_.reset();
}

void Connector::look_up() {
  const std::string port = std::to_string(port_);
  lookup_ = std::make_shared<Lookup>();
  lookup_->run(host_, port, AI_NUMERICHOST);
  if (!lookup_->addresses.empty()) return looked_up();

  lookup_->error.clear();
  lookup_->is_unknown = false;
  lookup_->done.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  loop_.watch(lookup_->done.get(), EPOLLIN, [this](uint32_t) {
    loop_.forget(lookup_->done.get());
    looked_up();
  });
  base::start_without_signals([lookup = lookup_, host = host_, port] {
    lookup->run(host, port, 0);
    ::eventfd_write(lookup->done.get(), 1);
  }).detach();
}

void Connector::looked_up() {
  const std::shared_ptr<Lookup> lookup = std::exchange(lookup_, nullptr);
  addresses_ = lookup->addresses;
  next_ = 0;
  if (!lookup->is_unknown) {
    unknown_since_.reset();
  } else if (!unknown_since_) {
    unknown_since_ = base::EventLoop::Clock::now();
  } else if (base::EventLoop::Clock::now() - *unknown_since_ >= base::kHostPatience) {
    return unknown_host_(lookup->error);
  }
  if (addresses_.empty()) {
    record_failure(host_, lookup->error);
    pause();
  } else {
    try_next_address();
  }
}

void Connector::try_next_address() { try_address(addresses_[next_++]); }

void Connector::try_address(const SocketAddress& address) {
  current_ = address.to_string();
  socket_.reset(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_) return try_again(std::strerror(errno));
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 &&
      errno != EINPROGRESS) {
    const int error = errno;
    socket_.reset();
    return try_again(std::strerror(error));
  }
  loop_.watch(socket_.get(), EPOLLOUT, [this](uint32_t) { connection_ready(); });
  timer_ = loop_.after(kConnectTimeout, [this] {
    loop_.forget(socket_.get());
    socket_.reset();
    try_again(std::strerror(ETIMEDOUT));
  });
}

void Connector::connection_ready() {
  loop_.cancel(timer_);
  loop_.forget(socket_.get());
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0 && is_connected_to_itself(socket_.get())) error = ECONNREFUSED;
  if (error != 0) {
    socket_.reset();
    return try_again(std::strerror(error));
  }
  connected_(std::move(socket_));
}

void Connector::record_failure(const std::string& place, const std::string& reason) {
  Attempt& attempt = attempts_[place];
  attempt.reason = reason;
  ++attempt.times;
}

void Connector::pause() {
  pause_ = std::clamp(pause_ * 2, kFirstConnectPause, kLongestConnectPause);
  // The name is looked up again: the system may know it by then.
  timer_ = loop_.after(pause_, [this] { look_up(); });
}

std::string Connector::tried() const {
  std::string text;
  for (const auto& [place, attempt] : attempts_) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{}: {}", place, attempt.reason);
    if (attempt.times > 1) text += fmt::format(" ({} times)", attempt.times);
  }
  return text.empty() ? "nothing was tried yet" : text;
}

std::string describe_unknown_host(const RendezvousOptions& options, const std::string& here,
                                  const std::string& reason) {
  return fmt::format(
      "the job's rendezvous is at host '{}' port {}, which {} does not know ({}): set {} to a name or an "
      "address of node 0 that every node knows",
      options.host, options.port, here, reason, options.host_option);
}

// --- Channel ---

namespace {

// A peer with more unsent bytes than this does not read.
constexpr size_t kMaxUnsentBytes = 16 << 20;
constexpr size_t kReadBytes = 16 << 10;
constexpr unsigned kUserTimeoutMs = 30'000;

}  // namespace

void prepare_socket(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A lost packet is sent again every 0.2 s, not after 0.2, 0.4, 0.8 s.
  ::setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof on);
  // Pulses keep a member alive that TCP does not reach, but not for ever.
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof kUserTimeoutMs);
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

Channel::Channel(base::EventLoop& loop, base::UniqueFd fd, size_t max_bytes, Handler& handler)
    : loop_(loop), fd_(std::move(fd)), handler_(handler), reader_(max_bytes) {
  prepare_socket(fd_.get());
  loop_.watch(fd_.get(), EPOLLIN, [this](uint32_t events) { ready(events); });
}

void Channel::send(const wire::Message& message) {
  send(std::make_shared<const std::string>(wire::encode(message)));
}

void Channel::send(std::shared_ptr<const std::string> frame) {
  if (!fd_) return;
  if (outgoing_) {
    const std::string_view body = std::string_view(*frame).substr(kFrameHeaderBytes);
    frame = std::make_shared<const std::string>(encode_frame(outgoing_->seal(body)));
  }
  unsent_bytes_ += frame->size();
  unsent_.push_back(std::move(frame));
  flush();
  // receive() then reports the connection as closed.
  if (unsent_bytes_ > kMaxUnsentBytes) ::shutdown(fd_.get(), SHUT_RDWR);
}

void Channel::seal(const base::MessageSeal& outgoing, const base::MessageSeal& incoming) {
  outgoing_ = outgoing;
  incoming_ = incoming;
}

void Channel::flush() {
  while (!unsent_.empty()) {
    const std::string& frame = *unsent_.front();
    const ssize_t sent = ::send(fd_.get(), frame.data() + sent_of_first_, frame.size() - sent_of_first_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      // receive() reports a broken connection, after the peer's last messages.
      if (errno != EAGAIN) unsent_.clear();
      break;
    }
    sent_of_first_ += static_cast<size_t>(sent);
    unsent_bytes_ -= static_cast<size_t>(sent);
    if (sent_of_first_ < frame.size()) break;
    unsent_.pop_front();
    sent_of_first_ = 0;
  }
  if (watches_output_ == unsent_.empty()) {
    watches_output_ = !unsent_.empty();
    loop_.change(fd_.get(), watches_output_ ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
}

void Channel::ready(uint32_t events) {
  if ((events & EPOLLOUT) != 0) flush();
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) receive();
}

void Channel::receive() {
  std::array<char, kReadBytes> bytes;
  const ssize_t count = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count < 0) return fail(std::strerror(errno));
  if (count == 0) return fail("the peer closed the connection");
  reader_.feed({bytes.data(), static_cast<size_t>(count)});
  dispatch();
}

void Channel::dispatch() {
  try {
    while (fd_) {
      std::optional<std::string> body = reader_.next();
      if (!body) return;
      if (incoming_) body = incoming_->open(*body);
      if (!body) throw ProtocolError("a message with a wrong seal");
      handler_.received(*this, wire::decode(*body));
    }
  } catch (const ProtocolError& error) {
    fail(error.what());
  }
}

void Channel::fail(const std::string& reason) {
  close();
  handler_.broken(*this, reason);
}

void Channel::close() {
  if (!fd_) return;
  loop_.forget(fd_.get());
  // Unread bytes would turn the end of the connection into a reset, which may discard our
  // last message: read them first.
  ::shutdown(fd_.get(), SHUT_WR);
  std::array<char, kReadBytes> rest;
  for (int i = 0; i < 16 && ::recv(fd_.get(), rest.data(), rest.size(), MSG_DONTWAIT) > 0; ++i) {
  }
  fd_.reset();
  unsent_.clear();
}

}  // namespace lockstep::launcher
