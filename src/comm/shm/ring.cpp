#include "comm/shm/ring.h"

#include <algorithm>

namespace lockstep::comm::shm {
namespace {

constexpr int kPieceBits = 20;

}  // namespace

Ring::Ring(const std::vector<Peer>& peers, int rank) : rank_(rank) {
  for (const auto& peer : peers) {
    homes_.push_back(&peer.home());
  }
}

Entry* Ring::next_entry() {
  const uint64_t next = published_ + 1;
  if (next > kRing && !all_finished(next - kRing)) {
    return nullptr;
  }
  return &homes_[rank_]->entries[next % kRing];
}

void Ring::publish() {
  const uint64_t next = ++published_;
  Home& home = *homes_[rank_];
  home.pieces[next % kRing].done.store(0, std::memory_order_relaxed);
  home.entries[next % kRing].ready.store(next, std::memory_order_release);
}

bool Ring::arrived(int rank) const {
  return entry(rank).ready.load(std::memory_order_acquire) == finished_ + 1;
}

bool Ring::all_arrived() {
  while (num_arrived_ < size()) {
    if (!arrived(num_arrived_)) {
      return false;
    }
    ++num_arrived_;
  }
  return true;
}

void Ring::finish() {
  ++finished_;
  num_arrived_ = 0;
  homes_[rank_]->finished.store(finished_, std::memory_order_release);
}

bool Ring::all_finished(uint64_t sequence) {
  if (finished_by_all_ < sequence) {
    uint64_t lowest = finished_;
    for (int rank = 0; rank < size(); ++rank) {
      lowest = std::min(lowest, finished_by(rank));
    }
    finished_by_all_ = lowest;
  }
  return finished_by_all_ >= sequence;
}

std::optional<uint32_t> Ring::claim_piece(uint32_t num_pieces) {
  auto& next = homes_[0]->claims[current()].next;
  const uint64_t first = (finished_ + 1) << kPieceBits;
  uint64_t seen = next.load(std::memory_order_relaxed);
  while (true) {
    // A smaller value is left over from an earlier use of this place in the ring.
    const uint64_t piece = std::max(seen, first) - first;
    if (piece >= num_pieces) {
      return std::nullopt;
    }
    if (next.compare_exchange_weak(seen, first + piece + 1, std::memory_order_relaxed)) {
      return static_cast<uint32_t>(piece);
    }
  }
}

void Ring::piece_done() {
  // Only this rank writes it: no read-modify-write is needed.
  auto& done = homes_[rank_]->pieces[current()].done;
  done.store(done.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

uint32_t Ring::pieces_done_by(int rank) const {
  return homes_[rank]->pieces[current()].done.load(std::memory_order_acquire);
}

bool Ring::all_pieces_done(uint32_t num_pieces) const {
  uint32_t done = 0;
  for (int rank = 0; rank < size(); ++rank) {
    done += pieces_done_by(rank);
  }
  return done == num_pieces;
}

void Ring::set_reducing(bool reducing) {
  homes_[rank_]->pieces[current()].busy.store(reducing ? 1 : 0, std::memory_order_relaxed);
}

bool Ring::is_reducing(int rank) const {
  return homes_[rank]->pieces[current()].busy.load(std::memory_order_relaxed) != 0;
}

}  // namespace lockstep::comm::shm
