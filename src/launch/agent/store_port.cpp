#include "launch/agent/store_port.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace lockstep::launcher {

StorePort::StorePort() : StorePort(0) {}

StorePort::StorePort(uint16_t port) {
  socket_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket_ || ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(socket_.get(), generic, length) != 0 || ::getsockname(socket_.get(), generic, &length) != 0) {
    const std::string which = port == 0 ? "a free port" : fmt::format("port {}", port);
    throw ConfigError("run", fmt::format("cannot have {} for the workers' store: {}; without --master-port "
                                         "a free one is taken",
                                         which, std::strerror(errno)));
  }
  number_ = ntohs(address.sin_port);
}

StorePort StorePort::to_hand_over(const std::string& address) {
  return StorePort(base::listen_on_free_port(address));
}

}  // namespace lockstep::launcher
