#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/unique_fd.h"

namespace lockstep::base {

// A listening TCP socket. The port stays reserved while the socket is open: no other process can take
// it between choosing and using it.
struct ListenSocket {
  UniqueFd fd;
  uint16_t port = 0;
};

// address: a numeric IPv4 or IPv6 address; "127.0.0.1" accepts connections from this machine only, "::"
// over all of IPv6 and IPv4. Port 0: the kernel chooses. ConfigError names the port and the reason, for
// example that it is in use.
ListenSocket listen_on(const std::string& address, uint16_t port);
ListenSocket listen_on_free_port(const std::string& address);

// Whether the descriptor is a listening socket.
bool is_listening(int fd);

// Whether a code of getaddrinfo(3) means that the host does not exist. False for 0 and for codes that
// mean that no name server could be asked.
bool is_unknown_host(int code);

// The message for a code of getaddrinfo(3). REQUIRES: errno is unchanged since the call.
std::string lookup_error(int code);

// How long to retry an unknown host: the names of containers that start together appear one after the
// other.
inline constexpr std::chrono::milliseconds kHostPatience{8000};

// Looks a host up and retries while it is unknown, for at most `patience`. Blocks. Returns the message
// for a host that stays unknown. nullopt: it has an address, or no name server could be asked, in which
// case a later connect may retry.
std::optional<std::string> find_unknown_host(const std::string& host, std::chrono::milliseconds patience);

}  // namespace lockstep::base
