#include "comm/host_layout.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>

namespace lockstep::comm {

int HostLayout::most_ranks_on_a_host() const {
  size_t most = 0;
  for (const auto& ranks : hosts) {
    most = std::max(most, ranks.size());
  }
  return static_cast<int>(most);
}

bool HostLayout::is_regular() const {
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const auto index = static_cast<size_t>(rank);
    if (host_of[index] * most_ranks_on_a_host() + local_rank_of[index] != rank) {
      return false;
    }
  }
  return num_ranks() == num_hosts() * most_ranks_on_a_host();
}

HostLayout layout_of(const std::vector<std::string>& identities) {
  HostLayout layout;
  std::vector<std::string> known;
  for (const std::string& identity : identities) {
    const auto found = std::find(known.begin(), known.end(), identity);
    const auto host = static_cast<size_t>(found - known.begin());
    if (found == known.end()) {
      known.push_back(identity);
      layout.hosts.emplace_back();
    }
    layout.local_rank_of.push_back(static_cast<int>(layout.hosts[host].size()));
    layout.hosts[host].push_back(static_cast<int>(layout.host_of.size()));
    layout.host_of.push_back(static_cast<int>(host));
  }
  return layout;
}

std::vector<std::string> exchange_identities(c10d::Store& store, int rank, int size, const std::string& mine,
                                             std::chrono::milliseconds timeout) {
  const auto key = [](int of_rank) { return fmt::format("host_identity/{}", of_rank); };
  store.set(key(rank), mine);
  std::vector<std::string> keys;
  for (int peer = 0; peer < size; ++peer) {
    keys.push_back(key(peer));
  }
  store.wait(keys, timeout);
  std::vector<std::string> identities;
  for (const auto& value : store.multiGet(keys)) {
    identities.emplace_back(value.begin(), value.end());
  }
  return identities;
}

}  // namespace lockstep::comm
