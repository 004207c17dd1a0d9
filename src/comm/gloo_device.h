#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/environment.h"

namespace lockstep::comm {

// Where Gloo listens: exactly one of the two is set.
struct GlooDevice {
  std::string interface;
  std::string address;

  bool operator==(const GlooDevice&) const = default;
};

// The first that is given of: `requested` (the name of an interface, or an address of this
// machine), GLOO_SOCKET_IFNAME (names separated by commas, as in PyTorch), the local address from
// which packets to `rendezvous_address` leave, loopback. Names are resolved forward only.
// ConfigError: an interface that does not exist, or an address that does not resolve.
std::vector<GlooDevice> choose_gloo_devices(const std::string& requested,
                                            const base::Environment& environment,
                                            const std::string& rendezvous_address);

// The numeric local address from which packets to `host` leave; nullopt when the
// host does not resolve or has no route.
std::optional<std::string> local_address_towards(const std::string& host);

// A numeric address of this machine at which other ranks can reach it, chosen by
// the same rules.
std::string numeric_local_address(const std::string& requested, const std::string& rendezvous_address);

// The descriptors of this process that are TCP sockets and listen.
std::set<int> listening_sockets();

// Makes the kernel drop every packet that arrives at this listening socket; connections that it
// has accepted stay. For a socket that another library will close.
void refuse_connections(int listening_fd);

}  // namespace lockstep::comm
