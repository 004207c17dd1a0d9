#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <vector>

#include "comm/shm/collectives.h"
#include "comm/shm/peer.h"
#include "comm/shm/point_to_point.h"
#include "comm/shm/regions.h"

namespace lockstep::comm::shm {

// One rank's side of a group: starts operations, waits for them, and watches the peers while it
// waits.
//
// The first failure breaks the group for ever: pending and later operations throw it, and it is
// published to the peers, so that all survivors report the same cause. Used by one thread at a time;
// a second one gets a ConfigError.
class Group {
 public:
  using Milliseconds = std::chrono::milliseconds;

  Group(std::vector<Peer> peers, int rank);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  const std::shared_ptr<OwnRegions>& own_regions() const { return own_regions_; }

  void start(c10::intrusive_ptr<CollectiveWork> work);
  void start(c10::intrusive_ptr<MessageWork> work);
  // Blocks until the operation is done. Throws CommError.
  void wait(const GroupWork& work, Milliseconds timeout);
  // Makes the progress that is possible now, without blocking. Failures are in failure().
  void poll(const GroupWork& work);
  // What broke the group, or null.
  std::exception_ptr failure() const { return failure_; }
  // Leaves the group; peers that still need this rank fail. Logs pending operations.
  void close() noexcept;

 private:
  class Exclusive;

  bool progress();
  void throw_if_broken() const;
  void check_before_start();
  void check_peers(const GroupWork* waited_for);
  void check_peer(int peer, const GroupWork* waited_for);
  bool needs(int peer, const GroupWork* waited_for) const;
  std::string waiting_text(const GroupWork* waited_for) const;
  [[noreturn]] void time_out(const GroupWork& work, Milliseconds timeout);
  void break_group(std::exception_ptr error) noexcept;
  Home& own_home() const { return peers_[rank_].home(); }

  std::vector<Peer> peers_;
  int rank_;
  bool may_spin_;
  std::shared_ptr<OwnRegions> own_regions_;
  Collectives collectives_;
  PointToPoint point_to_point_;
  std::exception_ptr failure_;
  bool closed_ = false;
  uint32_t num_idle_polls_ = 0;
  std::chrono::steady_clock::time_point processes_checked_{};
  std::atomic<bool> in_use_{false};
};

}  // namespace lockstep::comm::shm
