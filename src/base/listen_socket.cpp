#include "base/listen_socket.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace lockstep::base {
namespace {

constexpr int kBacklog = 4096;

[[noreturn]] void fail(const std::string& address, uint16_t port, const char* call, const char* reason) {
  const std::string place = port == 0 ? address : fmt::format("{}, port {}", address, port);
  throw ConfigError("socket", fmt::format("cannot listen on {}: {}: {}", place, call, reason));
}

uint16_t port_of(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

}  // namespace

ListenSocket listen_on_free_port(const std::string& address) { return listen_on(address, 0); }

ListenSocket listen_on(const std::string& address, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    fail(address, port, "getaddrinfo", ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, ::freeaddrinfo);

  ListenSocket result;
  result.fd.reset(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!result.fd) fail(address, port, "socket", std::strerror(errno));
  if (port != 0) {
    // A port that we ask for by number may still have connections that are winding down.
    const int on = 1;
    ::setsockopt(result.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (found->ai_family == AF_INET6) {
    const int off = 0;
    ::setsockopt(result.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(result.fd.get(), found->ai_addr, found->ai_addrlen) != 0)
    fail(address, port, "bind", std::strerror(errno));
  if (::listen(result.fd.get(), kBacklog) != 0) fail(address, port, "listen", std::strerror(errno));
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(result.fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    fail(address, port, "getsockname", std::strerror(errno));
  }
  result.port = port_of(bound);
  return result;
}

}  // namespace lockstep::base
