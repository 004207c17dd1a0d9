#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace lockstep::base {

// A TCP socket that listens. Holding it is what makes the port ours: nobody can take
// it between choosing and using.
struct ListenSocket {
  UniqueFd fd;
  uint16_t port = 0;
};

// address: a numeric IPv4 or IPv6 address, "127.0.0.1" for this machine alone.
ListenSocket listen_on_free_port(const std::string& address);
// Port 0: one that the kernel picks. "::" is all of IPv6 and IPv4. ConfigError names
// the port and the reason, for instance that it is in use.
ListenSocket listen_on(const std::string& address, uint16_t port);

}  // namespace lockstep::base
