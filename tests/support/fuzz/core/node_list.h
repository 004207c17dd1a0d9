#pragma once

#include <lockstep/error.h>

#include <string>
#include <string_view>
#include <vector>

#include "cluster/slurm_notation.h"
#include "support/fuzz/finding.h"

namespace lockstep::fuzz {

// The first line of the bytes, as editors leave one.
inline std::string_view first_line(std::string_view bytes) { return bytes.substr(0, bytes.find('\n')); }

inline bool takes_node_list(std::string_view bytes) {
  const std::string_view text = first_line(bytes);
  try {
    const std::vector<std::string> hosts = cluster::expand_node_list(text, "LIST");
    require(!hosts.empty() && hosts.size() <= static_cast<size_t>(cluster::kMaxHosts),
            "1 to kMaxHosts hosts");
    for (const std::string& host : hosts) {
      require(!host.empty() && host.find_first_of("[],") == std::string::npos, "a host is a name: " + host);
    }
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
