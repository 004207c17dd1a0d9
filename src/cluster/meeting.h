#pragma once

#include <lockstep/rank_map.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/variables.h"

namespace lockstep::cluster {

// Ports that Lockstep derives lie below the range from which Linux hands out
// ephemeral ones (32768 and up), so that no outgoing connection sits on them.
inline constexpr int kFirstDerivedPort = 20000;
inline constexpr int kNumDerivedPorts = 12768;

// The same port on every rank: kFirstDerivedPort + (FNV-1a(identity) + offset)
// modulo kNumDerivedPorts. Different offsets of one identity never collide;
// different identities may.
uint16_t derived_port(std::string_view identity, uint64_t offset = 0);

// localhost, 127.x.y.z or ::1.
bool is_loopback(std::string_view address);

// Where the ranks of one launcher meet when nobody says it.
struct MeetingDefaults {
  std::string address;  // "": the launcher does not tell
  std::optional<uint16_t> port;
  std::string hint;  // what to do when one is missing
};

// `init_method` where it names a place, else MASTER_ADDR and MASTER_PORT, each
// before its default; nowhere for a world of one. ConfigError, which shows
// `names`: the address or the port is missing or broken.
Rendezvous choose_rendezvous(const Variables& variables, const std::optional<Rendezvous>& init_method,
                             int world_size, const MeetingDefaults& defaults, const Names& names);

// For ranks that a foreign launcher started: the token that the user gave all of them, or one
// that rank 0 writes to a file of this name.
void set_own_secret(const Variables& variables, const std::string& key_name, Rendezvous& meeting);

}  // namespace lockstep::cluster
