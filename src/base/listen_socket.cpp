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

constexpr int kBacklog = 2048;

[[noreturn]] void fail(const std::string& address, const char* call, const char* reason) {
  throw ConfigError("socket", fmt::format("cannot listen on {}: {}: {}", address, call, reason));
}

uint16_t port_of(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

}  // namespace

ListenSocket listen_on_free_port(const std::string& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(address.c_str(), "0", &hints, &found); error != 0) {
    fail(address, "getaddrinfo", ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, ::freeaddrinfo);

  ListenSocket result;
  result.fd.reset(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!result.fd) fail(address, "socket", std::strerror(errno));
  if (::bind(result.fd.get(), found->ai_addr, found->ai_addrlen) != 0)
    fail(address, "bind", std::strerror(errno));
  if (::listen(result.fd.get(), kBacklog) != 0) fail(address, "listen", std::strerror(errno));
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(result.fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    fail(address, "getsockname", std::strerror(errno));
  }
  result.port = port_of(bound);
  return result;
}

}  // namespace lockstep::base
