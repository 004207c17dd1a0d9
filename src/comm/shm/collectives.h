#pragma once

#include <c10/util/intrusive_ptr.h>

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "comm/shm/regions.h"
#include "comm/shm/ring.h"
#include "comm/shm/work.h"

namespace lockstep::comm::shm {

// Runs the collectives of one rank, in the order in which they were started.
// Nothing blocks. One thread at a time.
class Collectives {
 public:
  Collectives(const std::vector<Peer>& peers, int rank, std::shared_ptr<OwnRegions> own_regions);

  // Publishes what there is room for and returns.
  void start(c10::intrusive_ptr<CollectiveWork> work);

  // Does what can be done now. False: nothing could. Throws CommError when the
  // ranks do not agree on what they do.
  bool progress();

  bool idle() const { return queue_.empty(); }
  size_t num_pending() const { return queue_.size(); }
  // The operation that all later ones wait for. REQUIRES: not idle.
  const CollectiveWork& front() const { return *queue_.front(); }
  struct Blocker {
    std::vector<int> ranks;
    const char* what = "";  // what they have not done: "arrived"
  };
  // The ranks that the front operation cannot go on without. REQUIRES: not idle.
  Blocker blocker() const;
  // Forgets what is pending.
  void clear();

 private:
  struct Slice {
    uint64_t begin;
    uint64_t bytes;
  };

  // Blocks that a contributing rank exposes: one, or one a rank.
  int num_blocks(const CollectiveWork& work) const;
  uint32_t rounds_for(const CollectiveWork& work) const;
  Slice slice_of(const CollectiveWork& work, uint32_t round) const;
  bool publish_some();
  bool expose(CollectiveWork& work, Entry& entry);
  void copy_blocks(const CollectiveWork& work, Slice slice, std::byte* to) const;
  // How much of the slice the block has, where blocks differ in size.
  static uint64_t bytes_within(Slice slice, const std::vector<uint64_t>& block_bytes, int block);

  bool step();
  void check_agreement(const CollectiveWork& work) const;
  [[noreturn]] void throw_disagreement() const;
  void run_round(CollectiveWork& work);
  // A divided round, when all ranks' tensors are in shared memory: combines in
  // place what pieces nobody else has taken.
  bool all_in_place() const;
  bool run_pieces(CollectiveWork& work);
  // A divided round otherwise: combines this rank's part of it, and copies the
  // parts of the others once they are done.
  bool run_parts(CollectiveWork& work);
  Slice part_of(Slice slice, int rank) const;
  void move_blocks(CollectiveWork& work, Slice slice);
  void reduce_round(CollectiveWork& work, Slice slice);
  void exchange_sizes(CollectiveWork& work);
  // The bytes that a peer exposes in the current round.
  std::byte* locate(int rank);
  void finish_round(CollectiveWork& work);
  void complete_front();

  int rank_;
  int size_;
  Ring ring_;
  std::shared_ptr<OwnRegions> own_regions_;
  std::vector<PeerRegions> peer_regions_;

  std::deque<c10::intrusive_ptr<CollectiveWork>> queue_;
  size_t num_fully_published_ = 0;                   // of queue_, from its front
  bool agreed_ = false;                              // on the current round
  uint64_t parts_taken_ = 0;                         // of the current round: bits by rank
  bool lingering_ = false;                           // the front is through but for peers that still read
  std::array<uint64_t, kStagingSlots> slot_user_{};  // the round that used the slot last
};

}  // namespace lockstep::comm::shm
