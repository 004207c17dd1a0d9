#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "comm/shm/layout.h"
#include "comm/shm/peer.h"

namespace lockstep::comm::shm {

// The shared memory that this rank allocates, besides its home. Thread-safe: any thread may free a
// tensor.
class OwnRegions : public std::enable_shared_from_this<OwnRegions> {
 public:
  explicit OwnRegions(std::shared_ptr<Mapping> home_memory) : home_memory_(std::move(home_memory)) {}

  enum class Use { kTensor, kMessage };

  // At least one byte of memory that the group reduces without copying. The pointer owns it and may
  // outlive the group. Null: there are kMaxTensorRegions tensors, or kMaxRegions regions.
  std::shared_ptr<std::byte> allocate(size_t bytes, Use use = Use::kTensor);

  // Where peers find [data, data + bytes); nullopt: not in memory of this group.
  std::optional<Location> find(const void* data, size_t bytes) const;

 private:
  struct Slot {
    std::shared_ptr<Mapping> memory;
    uint32_t id = 0;
    Use use = Use::kTensor;
  };

  Home& home() const { return *reinterpret_cast<Home*>(home_memory_->data()); }
  // A free slot of the table, or -1.
  int free_slot(Use use) const LOCKSTEP_REQUIRES(mutex_);
  void release(int slot);

  std::shared_ptr<Mapping> home_memory_;
  mutable base::Mutex mutex_;
  std::array<Slot, kMaxRegions> slots_
      LOCKSTEP_GUARDED_BY(mutex_);                      // peers of this process use the addresses
  int num_slots_used_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // all later slots are free
  int num_tensors_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  uint32_t last_id_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

// The regions of one peer that this rank has mapped, on first use; unmapped when the peer has freed
// them. Used by one thread at a time.
class PeerRegions {
 public:
  explicit PeerRegions(const Peer& peer) : peer_(&peer) {}

  // REQUIRES: the peer is in an operation that refers to the location and keeps it alive. Throws
  // CommError if it cannot be mapped.
  std::byte* resolve(const Location& location);
  // Unmaps the regions that the peer has freed. Costs one load if there are none.
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
