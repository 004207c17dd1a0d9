#include "base/network.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

namespace lockstep::base {
namespace {

constexpr int kBacklog = 4096;

[[noreturn]] void fail_listen(const std::string& address, uint16_t port, const char* call,
                              const char* reason) {
  const std::string place = port == 0 ? address : fmt::format("{}, port {}", address, port);
  throw ConfigError("socket", fmt::format("cannot listen on {}: {}: {}", place, call, reason));
}

uint16_t port_of(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

constexpr std::chrono::milliseconds kLookupPause{500};

int look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code == 0) ::freeaddrinfo(found);
  return code;
}

}  // namespace

bool is_listening(int fd) {
  int listens = 0;
  socklen_t length = sizeof listens;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0;
}

ListenSocket listen_on_free_port(const std::string& address) { return listen_on(address, 0); }

ListenSocket listen_on(const std::string& address, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    fail_listen(address, port, "getaddrinfo", ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, ::freeaddrinfo);

  ListenSocket result;
  result.fd.reset(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!result.fd) fail_listen(address, port, "socket", std::strerror(errno));
  if (port != 0) {
    // A port given by number may still have connections in TIME_WAIT.
    const int on = 1;
    ::setsockopt(result.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (found->ai_family == AF_INET6) {
    const int off = 0;
    ::setsockopt(result.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(result.fd.get(), found->ai_addr, found->ai_addrlen) != 0)
    fail_listen(address, port, "bind", std::strerror(errno));
  if (::listen(result.fd.get(), kBacklog) != 0) fail_listen(address, port, "listen", std::strerror(errno));
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(result.fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    fail_listen(address, port, "getsockname", std::strerror(errno));
  }
  result.port = port_of(bound);
  return result;
}

bool is_unknown_host(int code) {
  switch (code) {
    case 0:
    case EAI_AGAIN:
    case EAI_MEMORY:
    case EAI_SYSTEM: return false;
    default: return true;
  }
}

std::string lookup_error(int code) {
  return code == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(code);
}

std::optional<std::string> find_unknown_host(const std::string& host, std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + patience;
  while (true) {
    const int code = look_up(host);
    if (!is_unknown_host(code)) return std::nullopt;
    const Clock::duration left = deadline - Clock::now();
    if (left <= left.zero()) return lookup_error(code);
    std::this_thread::sleep_for(std::min<Clock::duration>(left, kLookupPause));
  }
}

}  // namespace lockstep::base
