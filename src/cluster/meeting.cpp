#include "cluster/meeting.h"

#include <fmt/format.h>

namespace lockstep::cluster {

uint16_t derived_port(std::string_view identity, uint64_t offset) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a, 64 bits
  for (const char c : identity) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211ull;
  }
  const uint64_t slot = (hash % kNumDerivedPorts + offset % kNumDerivedPorts) % kNumDerivedPorts;
  return static_cast<uint16_t>(kFirstDerivedPort + slot);
}

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address.substr(0, 4) == "127.";
}

Rendezvous choose_rendezvous(const Variables& variables, const std::optional<Rendezvous>& init_method,
                             int world_size, const MeetingDefaults& defaults, const Names& names) {
  if (init_method) return world_size == 1 ? Rendezvous{} : *init_method;
  // Read before the world size is looked at: broken is broken in a world of one too.
  const std::optional<std::string> address = variables.text("MASTER_ADDR");
  const std::optional<uint16_t> port = variables.port("MASTER_PORT");
  if (world_size == 1) return {};

  Rendezvous result;
  result.kind = Rendezvous::Kind::kTcp;
  result.address = address.value_or(defaults.address);
  result.port = port ? *port : defaults.port.value_or(0);
  if (!result.address.empty() && result.port != 0) return result;
  const char* missing = !result.address.empty() ? "MASTER_PORT is missing"
                        : result.port != 0      ? "MASTER_ADDR is missing"
                                                : "MASTER_ADDR and MASTER_PORT are missing";
  Names shown = names;
  shown.insert(shown.end(), {"MASTER_ADDR", "MASTER_PORT"});
  variables.fail(fmt::format("the ranks do not know where to meet, {}; {}", missing, defaults.hint), shown);
}

void set_own_secret(const Variables& variables, const std::string& key_name, Rendezvous& meeting) {
  if (meeting.kind != Rendezvous::Kind::kTcp) return;
  if (variables.text("LOCKSTEP_JOB_TOKEN")) {
    meeting.secret = Rendezvous::Secret::kToken;
  } else {
    meeting.secret = Rendezvous::Secret::kKeyFile;
    meeting.key_name = key_name;
  }
}

}  // namespace lockstep::cluster
