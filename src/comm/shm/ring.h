#pragma once

#include <optional>
#include <vector>

#include "comm/shm/layout.h"
#include "comm/shm/rendezvous.h"

namespace lockstep::comm::shm {

// The sequence of rounds that all ranks go through, as this rank sees it: it
// publishes round p, and later finishes round f <= p. Nothing here blocks or makes
// a system call. One thread at a time.
class Ring {
 public:
  Ring(const std::vector<Peer>& peers, int rank);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(homes_.size()); }
  Home& home(int rank) const { return *homes_[rank]; }

  uint64_t published() const { return published_; }
  uint64_t finished() const { return finished_; }

  // The entry of round published() + 1, to be filled in before publish(); null
  // while some rank still needs what is in it.
  Entry* next_entry();
  void publish();

  // The round finished() + 1, which this rank has published. True once all ranks
  // have: their entries may be read until finish().
  bool all_arrived();
  const Entry& entry(int rank) const { return homes_[rank]->entries[(finished_ + 1) % kRing]; }
  bool arrived(int rank) const;
  void finish();

  // Whether all ranks have finished the round.
  bool all_finished(uint64_t sequence);
  uint64_t finished_by(int rank) const { return homes_[rank]->finished.load(std::memory_order_acquire); }

  // The round finished() + 1 in pieces that the ranks share out among themselves:
  // whoever comes takes the next one, so that a rank that is busy elsewhere holds
  // up nobody.
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
  uint64_t finished_by_all_ = 0;  // a lower bound, refreshed when it is too low
  int num_arrived_ = 0;           // ranks 0 .. num_arrived_ - 1 have published finished_ + 1
};

}  // namespace lockstep::comm::shm
