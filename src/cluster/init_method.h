#pragma once

#include <lockstep/rank_map.h>

#include <optional>
#include <string>

namespace lockstep::cluster {

// torch's init_method URL, taken apart.
struct InitMethod {
  // Empty for env://: the place to meet is found as if no URL had been given.
  std::optional<Rendezvous> rendezvous;
  // From "?rank=R&world_size=W".
  std::optional<int> rank;
  std::optional<int> world_size;
};

// Reads env://, tcp://host:port, tcp://[ipv6]:port and file:///path, each with an
// optional query. ConfigError shows the URL and says what is wrong with it.
InitMethod parse_init_method(const std::string& text);

}  // namespace lockstep::cluster
