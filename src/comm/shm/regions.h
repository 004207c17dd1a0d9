#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/shm/layout.h"
#include "comm/shm/mapping.h"
#include "comm/shm/rendezvous.h"

namespace lockstep::comm::shm {

// The shared memory that this rank hands out, besides its home. Thread-safe:
// tensors are freed wherever their last owner is.
class OwnRegions : public std::enable_shared_from_this<OwnRegions> {
 public:
  explicit OwnRegions(std::shared_ptr<Mapping> home_memory) : home_memory_(std::move(home_memory)) {}

  enum class Use { kTensor, kMessage };

  // Memory of at least one byte that the group reduces without copying. The
  // pointer owns it and may outlive the group. Null: there are kMaxTensorRegions, for
  // messages kMaxRegions, use ordinary memory.
  std::shared_ptr<std::byte> allocate(size_t bytes, Use use = Use::kTensor);

  // Where peers find [data, data + bytes); empty: not in memory of this group.
  std::optional<Location> find(const void* data, size_t bytes) const;

 private:
  struct Slot {
    std::shared_ptr<Mapping> memory;
    uint32_t id = 0;
    Use use = Use::kTensor;
  };

  Home& home() const { return *reinterpret_cast<Home*>(home_memory_->data()); }
  // A free slot of the table, or -1. Under mutex_.
  int free_slot(Use use) const;
  void release(int slot);

  std::shared_ptr<Mapping> home_memory_;
  mutable std::mutex mutex_;
  std::array<Slot, kMaxRegions> slots_;  // guarded by mutex_; addresses are stable
  int num_slots_used_ = 0;               // slots_ beyond are free
  int num_tensors_ = 0;
  uint32_t last_id_ = 0;
};

// The regions of one peer that this rank has seen, mapped on first sight and
// unmapped when the peer has freed them. One thread at a time.
class PeerRegions {
 public:
  explicit PeerRegions(const Peer& peer) : peer_(&peer) {}

  // REQUIRES: the peer is in an operation that names the location, which keeps it
  // alive. Throws CommError when it cannot be mapped.
  std::byte* resolve(const Location& location);
  // Unmaps what the peer has freed. One load when there is nothing.
  void forget_freed();

 private:
  struct Seen {
    uint32_t id = 0;
    std::shared_ptr<Mapping> memory;
  };

  const Peer* peer_;
  std::vector<Seen> seen_;
  uint64_t freed_ = 0;
};

}  // namespace lockstep::comm::shm
