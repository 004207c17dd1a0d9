#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace lockstep::comm {

// Which ranks of a group can share memory with which.
struct HostLayout {
  // The ranks of each host in ascending order; hosts in the order of their first rank, which is
  // the host's leader.
  std::vector<std::vector<int>> hosts;
  // For each rank: the index of its host, and its position among that host's ranks.
  std::vector<int> host_of;
  std::vector<int> local_rank_of;

  int num_hosts() const { return static_cast<int>(hosts.size()); }
  int num_ranks() const { return static_cast<int>(host_of.size()); }
  int most_ranks_on_a_host() const;
  // Every host has the same number of ranks, and their ranks are consecutive.
  bool is_regular() const;
};

// Ranks with equal identities share a host.
HostLayout layout_of(const std::vector<std::string>& identities);

// Gives every rank of the group all identities, in rank order. Collective. Throws the store's
// exception if not all ranks came within the timeout.
std::vector<std::string> exchange_identities(c10d::Store& store, int rank, int size, const std::string& mine,
                                             std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
