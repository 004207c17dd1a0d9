#include "launch/rendezvous/connector.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/host_lookup.h"
#include "base/silent_thread.h"
#include "launch/rendezvous/channel.h"

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstConnectPause{20};
constexpr milliseconds kLongestConnectPause{1000};
// For one address; the kernel itself would wait for two minutes.
constexpr milliseconds kConnectTimeout{3000};

// A client on an ephemeral port can meet itself there when nobody listens.
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

// Shared with the thread that looks the name up: it may outlive the connector.
struct Connector::Lookup {
  base::UniqueFd done;  // readable when the thread is; none where none was needed
  std::vector<SocketAddress> addresses;
  std::string error;
  bool is_unknown = false;  // the host, and not only who could tell

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
  note(current_, reason);
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
    note(host_, lookup->error);
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

void Connector::note(const std::string& place, const std::string& reason) {
  Attempt& attempt = attempts_[place];
  attempt.reason = reason;
  ++attempt.times;
}

void Connector::pause() {
  pause_ = std::clamp(pause_ * 2, kFirstConnectPause, kLongestConnectPause);
  // The name is looked up again: it may be new to the system.
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

}  // namespace lockstep::launcher
