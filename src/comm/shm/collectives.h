#pragma once

#include <c10/util/intrusive_ptr.h>

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "comm/shm/layout.h"
#include "comm/shm/peer.h"
#include "comm/shm/regions.h"
#include "comm/shm/work.h"

namespace lockstep::comm::shm {

// The sequence of rounds that all ranks go through, as this rank sees it: it publishes round p, and
// later finishes round f <= p. Nothing here blocks or makes a system call. Used by one thread at a
// time.
class Ring {
 public:
  Ring(const std::vector<Peer>& peers, int rank);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(homes_.size()); }
  Home& home(int rank) const { return *homes_[rank]; }

  uint64_t published() const { return published_; }
  uint64_t finished() const { return finished_; }

  // The entry of round published() + 1, to be filled in before publish(); null while some rank still
  // reads its earlier content.
  Entry* next_entry();
  void publish();

  // Whether all ranks have published round finished() + 1, as this rank has: their entries may be
  // read until finish().
  bool all_arrived();
  const Entry& entry(int rank) const { return homes_[rank]->entries[(finished_ + 1) % kRing]; }
  bool arrived(int rank) const;
  void finish();

  // Whether all ranks have finished the round.
  bool all_finished(uint64_t sequence);
  uint64_t finished_by(int rank) const { return homes_[rank]->finished.load(std::memory_order_acquire); }

  // The ranks share the pieces of round finished() + 1: each takes the next free one, so that a busy
  // rank does not delay the others. nullopt: all are taken.
  std::optional<uint32_t> claim_piece(uint32_t num_pieces);
  void piece_done();
  uint32_t pieces_done_by(int rank) const;
  bool all_pieces_done(uint32_t num_pieces) const;
  void set_reducing(bool reducing);
  bool is_reducing(int rank) const;

 private:
  size_t current() const { return (finished_ + 1) % kRing; }

  int rank_;
  std::vector<Home*> homes_;
  uint64_t published_ = 0;
  uint64_t finished_ = 0;
  uint64_t finished_by_all_ = 0;  // a lower bound, updated when it is too low
  int num_arrived_ = 0;           // ranks 0 .. num_arrived_ - 1 have published finished_ + 1
};

// Runs the collectives of one rank, in the order in which they were started. Nothing blocks. Used
// by one thread at a time.
class Collectives {
 public:
  Collectives(const std::vector<Peer>& peers, int rank, std::shared_ptr<OwnRegions> own_regions);

  // Publishes as many rounds as there is room for.
  void start(c10::intrusive_ptr<CollectiveWork> work);

  // Does all that is possible now. False: nothing was. Throws CommError if the ranks do not call the
  // same operation.
  bool progress();

  bool idle() const { return queue_.empty(); }
  size_t num_pending() const { return queue_.size(); }
  // The oldest pending operation. REQUIRES: not idle.
  const CollectiveWork& front() const { return *queue_.front(); }
  struct Blocker {
    std::vector<int> ranks;
    const char* what = "";  // what they have not done, as "arrived"
  };
  // The ranks that the front operation waits for. REQUIRES: not idle.
  Blocker blocker() const;
  // Drops all pending operations.
  void clear();

 private:
  struct Slice {
    uint64_t begin;
    uint64_t bytes;
  };

  // Blocks that a contributing rank exposes: one, or one for each rank.
  int num_blocks(const CollectiveWork& work) const;
  uint32_t rounds_for(const CollectiveWork& work) const;
  Slice slice_of(const CollectiveWork& work, uint32_t round) const;
  bool publish_some();
  bool expose(CollectiveWork& work, Entry& entry);
  void copy_blocks(const CollectiveWork& work, Slice slice, std::byte* to) const;
  // The bytes of the slice that the block has, if blocks differ in size.
  static uint64_t bytes_within(Slice slice, const std::vector<uint64_t>& block_bytes, int block);

  bool step();
  void check_agreement(const CollectiveWork& work) const;
  [[noreturn]] void throw_disagreement() const;
  void run_round(CollectiveWork& work);
  // A round of a split all-reduce, if all ranks' tensors are in shared memory: combines in place the
  // pieces that no other rank has taken.
  bool all_in_place() const;
  bool run_pieces(CollectiveWork& work);
  // The same otherwise: combines this rank's part, and copies the parts of the others once they are
  // done.
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
  bool readers_left_ = false;                        // the front is done, but peers still read its tensors
  std::array<uint64_t, kStagingSlots> slot_user_{};  // the round that used the slot last
};

}  // namespace lockstep::comm::shm
