#include "comm/shm/collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace lockstep::comm::shm {
namespace {

// Bits of a claim that count the pieces of a round.
constexpr int kPieceBits = 20;
constexpr uint64_t kSmallestPieceBytes = 16 * 1024;
constexpr uint64_t kPiecesPerRank = 4;

// Every rank computes an all-reduce of at most this many bytes over all ranks alone: the ranks
// synchronise once instead of twice.
constexpr uint64_t kOneShotBytes = 64 * 1024;

void copy_bytes(std::byte* to, const std::byte* from, uint64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

// --- Ring ---

Ring::Ring(const std::vector<Peer>& peers, int rank) : rank_(rank) {
  for (const auto& peer : peers) {
    homes_.push_back(&peer.home());
  }
}

Entry* Ring::next_entry() {
  const uint64_t next = published_ + 1;
  if (next > kRing && !all_finished(next - kRing)) return nullptr;
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
    if (!arrived(num_arrived_)) return false;
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
    // A smaller value is from an earlier use of this place in the ring.
    const uint64_t piece = std::max(seen, first) - first;
    if (piece >= num_pieces) return std::nullopt;
    if (next.compare_exchange_weak(seen, first + piece + 1, std::memory_order_relaxed))
      return static_cast<uint32_t>(piece);
  }
}

void Ring::piece_done() {
  // Only this rank writes the count: no read-modify-write is needed.
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

// --- publishing rounds, and their order ---

Collectives::Collectives(const std::vector<Peer>& peers, int rank, std::shared_ptr<OwnRegions> own_regions)
    : rank_(rank),
      size_(static_cast<int>(peers.size())),
      ring_(peers, rank),
      own_regions_(std::move(own_regions)) {
  for (const auto& peer : peers) {
    peer_regions_.emplace_back(peer);
  }
}

int Collectives::num_blocks(const CollectiveWork& work) const {
  const Kind kind = work.call.kind;
  return kind == Kind::kScatter || kind == Kind::kReduceScatter || kind == Kind::kAllToAll ? size_ : 1;
}

void Collectives::start(c10::intrusive_ptr<CollectiveWork> work) {
  const uint64_t blocks = static_cast<uint64_t>(num_blocks(*work));
  work->slice_bytes = kRoundBytes / blocks / kCacheLine * kCacheLine;
  work->rounds_unknown = work->call.kind == Kind::kAllToAll;
  work->num_rounds = work->rounds_unknown ? 1 : rounds_for(*work);
  const bool all_reduce = work->call.kind == Kind::kAllReduce;
  work->split = all_reduce && work->block_bytes * size_ > kOneShotBytes;
  // A one-shot all-reduce overwrites its tensor while peers still read: they need a copy.
  if (work->exposes && work->contiguous_sources && (work->split || !all_reduce) &&
      work->block_bytes * blocks > kInlineBytes) {
    work->location = own_regions_->find(work->sources[0], work->block_bytes * blocks);
    for (auto& regions : peer_regions_) {
      regions.forget_freed();
    }
  }
  queue_.push_back(std::move(work));
  publish_some();
}

uint32_t Collectives::rounds_for(const CollectiveWork& work) const {
  return static_cast<uint32_t>(
      std::max<uint64_t>(1, (work.block_bytes + work.slice_bytes - 1) / work.slice_bytes));
}

Collectives::Slice Collectives::slice_of(const CollectiveWork& work, uint32_t round) const {
  const uint64_t data_round = work.call.kind == Kind::kAllToAll ? round - 1 : round;
  const uint64_t begin = data_round * work.slice_bytes;
  return {begin, std::min(work.slice_bytes, work.block_bytes - begin)};
}

void Collectives::clear() {
  queue_.clear();
  num_fully_published_ = 0;
}

bool Collectives::publish_some() {
  bool any = false;
  while (num_fully_published_ < queue_.size()) {
    CollectiveWork& work = *queue_[num_fully_published_];
    if (work.rounds_published == work.num_rounds) {
      if (work.rounds_unknown) break;
      ++num_fully_published_;
      continue;
    }
    Entry* entry = ring_.next_entry();
    if (entry == nullptr || !expose(work, *entry)) break;
    ring_.publish();
    ++work.rounds_published;
    any = true;
  }
  return any;
}

bool Collectives::expose(CollectiveWork& work, Entry& entry) {
  const uint32_t round = work.rounds_published;
  entry.signature = sign(work.call, round);
  entry.location = {};
  if (work.rounds_unknown) {
    std::memcpy(entry.payload, work.source_bytes.data(), work.source_bytes.size() * sizeof(uint64_t));
    return true;
  }
  if (!work.exposes) return true;
  const Slice slice = slice_of(work, round);
  if (work.location) {
    entry.location = *work.location;
    entry.location.offset += slice.begin;
    entry.stride = work.block_bytes;
    work.sources_exposed |= !work.split;  // else run_parts() decides
    return true;
  }
  entry.stride = slice.bytes;
  if (slice.bytes * num_blocks(work) <= kInlineBytes && !work.split) {
    entry.location.slot = Location::kInline;
    copy_blocks(work, slice, entry.payload);
    return true;
  }
  // The first free slot, not the next one: few slots stay in the cache.
  const auto slot = std::find_if(slot_user_.begin(), slot_user_.end(),
                                 [this](uint64_t sequence) { return ring_.all_finished(sequence); });
  if (slot == slot_user_.end()) return false;
  *slot = ring_.published() + 1;
  const auto index = static_cast<size_t>(slot - slot_user_.begin());
  entry.location = {Location::kStaging, 0, index};
  copy_blocks(work, slice, ring_.home(rank_).staging[index]);
  return true;
}

void Collectives::copy_blocks(const CollectiveWork& work, Slice slice, std::byte* to) const {
  if (work.split) {
    // The other ranks do not read this rank's own part.
    const Slice own = part_of(slice, rank_);
    const std::byte* from = work.sources[0] + slice.begin;
    std::memcpy(to, from, own.begin);
    std::memcpy(to + own.begin + own.bytes, from + own.begin + own.bytes,
                slice.bytes - own.begin - own.bytes);
    return;
  }
  const int blocks = num_blocks(work);
  for (int i = 0; i < blocks; ++i) {
    if (blocks > 1 && i == rank_) {
      continue;  // no other rank reads this rank's own block
    }
    const uint64_t bytes = bytes_within(slice, work.source_bytes, i);
    if (bytes > 0) {
      std::memcpy(to + i * slice.bytes, work.sources[i] + slice.begin, bytes);
    }
  }
}

uint64_t Collectives::bytes_within(Slice slice, const std::vector<uint64_t>& block_bytes, int block) {
  if (block_bytes.empty()) return slice.bytes;
  return block_bytes[block] <= slice.begin ? 0 : std::min(slice.bytes, block_bytes[block] - slice.begin);
}

bool Collectives::progress() {
  bool any = false;
  while (!queue_.empty()) {
    const bool published = publish_some();
    if (!step() && !published) break;
    any = true;
  }
  return any;
}

bool Collectives::step() {
  CollectiveWork& work = *queue_.front();
  if (readers_left_) {
    if (!ring_.all_finished(ring_.finished())) return false;
    readers_left_ = false;
    complete_front();
    return true;
  }
  if (work.rounds_finished == work.rounds_published || !ring_.all_arrived()) return false;
  if (!agreed_) {
    check_agreement(work);
    agreed_ = true;
  }
  if (work.split) return all_in_place() ? run_pieces(work) : run_parts(work);
  run_round(work);
  finish_round(work);
  return true;
}

void Collectives::finish_round(CollectiveWork& work) {
  ring_.finish();
  agreed_ = false;
  parts_taken_ = 0;
  ++work.rounds_finished;
  if (work.rounds_finished < work.num_rounds) return;
  if (work.sources_exposed) {
    readers_left_ = true;
  } else {
    complete_front();
  }
}

void Collectives::complete_front() {
  queue_.front()->done = true;
  queue_.pop_front();
  num_fully_published_ -= num_fully_published_ > 0 ? 1 : 0;
}

void Collectives::check_agreement(const CollectiveWork& work) const {
  const Signature own = sign(work.call, work.rounds_finished);
  for (int rank = 0; rank < size_; ++rank) {
    if (ring_.entry(rank).signature != own) {
      throw_disagreement();
    }
  }
}

void Collectives::throw_disagreement() const {
  std::vector<std::string> calls;
  for (int rank = 0; rank < size_; ++rank) {
    calls.push_back(fmt::format("rank {} calls {}", rank, describe(call_of(ring_.entry(rank).signature))));
  }
  throw CommError("shm", fmt::format("the ranks do not call the same operation: {}", fmt::join(calls, ", ")),
                  CommError::Recovery::kFatal);
}

Collectives::Blocker Collectives::blocker() const {
  const CollectiveWork& work = front();
  Blocker blocker;
  const auto collect = [&](const char* what, auto&& blocks) {
    blocker.what = what;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_ && blocks(rank)) {
        blocker.ranks.push_back(rank);
      }
    }
  };
  const auto is_behind = [&](int rank) { return ring_.finished_by(rank) < ring_.finished(); };
  if (readers_left_ || work.rounds_finished == work.rounds_published) {
    collect("finished an earlier part", is_behind);
  } else if (!agreed_) {
    collect("arrived", [&](int rank) { return !ring_.arrived(rank); });
  } else {
    collect("finished its part", [&](int rank) {
      return all_in_place() ? ring_.is_reducing(rank) : ring_.pieces_done_by(rank) == 0;
    });
  }
  return blocker;
}

// --- one round, once all ranks have arrived at it ---

std::byte* Collectives::locate(int rank) {
  // Entries are read-only for others; the pointer is mutable for tensors, which are reduced in
  // place.
  auto& entry = const_cast<Entry&>(ring_.entry(rank));
  switch (entry.location.slot) {
    case Location::kInline: return entry.payload;
    case Location::kStaging: return ring_.home(rank).staging[entry.location.offset];
    default:
      base::check(entry.location.slot >= 0, "a peer exposes nothing where something is read");
      return peer_regions_[rank].resolve(entry.location);
  }
}

void Collectives::run_round(CollectiveWork& work) {
  if (work.rounds_unknown) {
    exchange_sizes(work);
    return;
  }
  const Slice slice = slice_of(work, work.rounds_finished);
  if (work.outputs.empty() || (slice.bytes == 0 && work.output_bytes.empty())) return;
  if (work.call.reduces()) {
    reduce_round(work, slice);
  } else {
    move_blocks(work, slice);
  }
}

void Collectives::move_blocks(CollectiveWork& work, Slice slice) {
  const bool block_for_each = num_blocks(work) > 1;
  const auto pull = [&](int from, std::byte* output, uint64_t bytes) {
    if (bytes == 0) return;
    const std::byte* source = from == rank_
                                  ? work.sources[block_for_each ? rank_ : 0] + slice.begin
                                  : locate(from) + (block_for_each ? rank_ * ring_.entry(from).stride : 0);
    copy_bytes(output + slice.begin, source, bytes);
  };
  if (work.call.kind == Kind::kBroadcast || work.call.kind == Kind::kScatter) {
    pull(work.call.root, work.outputs[0], slice.bytes);
    return;
  }
  for (int i = 0; i < size_; ++i) {
    const int from = (rank_ + i) % size_;  // so that not all ranks read from one at once
    pull(from, work.outputs[from], bytes_within(slice, work.output_bytes, from));
  }
}

void Collectives::reduce_round(CollectiveWork& work, Slice slice) {
  const bool scatters = work.call.kind == Kind::kReduceScatter;
  std::array<const std::byte*, kMaxRanks> sources;
  for (int rank = 0; rank < size_; ++rank) {
    sources[rank] = rank == rank_ ? work.sources[scatters ? rank_ : 0] + slice.begin
                                  : locate(rank) + (scatters ? rank_ * ring_.entry(rank).stride : 0);
  }
  std::byte* destination = work.outputs[0] + slice.begin;
  reduce({work.call.reduction, work.element_type, sources.data(), size_, &destination, 1, 0,
          slice.bytes / work.element_bytes});
}

bool Collectives::all_in_place() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (ring_.entry(rank).location.slot < 0) return false;
  }
  return true;
}

bool Collectives::run_pieces(CollectiveWork& work) {
  const Slice slice = slice_of(work, work.rounds_finished);
  const uint64_t share = slice.bytes / (kPiecesPerRank * size_) / kCacheLine * kCacheLine;
  const uint64_t piece_bytes = std::max(kSmallestPieceBytes, share);
  const auto num_pieces = static_cast<uint32_t>((slice.bytes + piece_bytes - 1) / piece_bytes);
  std::array<std::byte*, kMaxRanks> buffers;
  bool any = false;
  ring_.set_reducing(true);
  while (const auto piece = ring_.claim_piece(num_pieces)) {
    if (!any) {
      // Not earlier: once all pieces are done a peer may have freed its tensor.
      for (int rank = 0; rank < size_; ++rank) {
        buffers[rank] = rank == rank_ ? work.sources[0] + slice.begin : locate(rank);
      }
      any = true;
    }
    const uint64_t begin = *piece * piece_bytes;
    const uint64_t bytes = std::min(piece_bytes, slice.bytes - begin);
    reduce({work.call.reduction, work.element_type, buffers.data(), size_, buffers.data(), size_, begin,
            bytes / work.element_bytes});
    ring_.piece_done();
  }
  ring_.set_reducing(false);
  if (!ring_.all_pieces_done(num_pieces)) return any;
  finish_round(work);
  return true;
}

Collectives::Slice Collectives::part_of(Slice slice, int rank) const {
  const uint64_t share = (slice.bytes / size_ + kCacheLine) / kCacheLine * kCacheLine;
  const uint64_t begin = std::min(slice.bytes, share * rank);
  return {begin, std::min(share, slice.bytes - begin)};
}

bool Collectives::run_parts(CollectiveWork& work) {
  const Slice slice = slice_of(work, work.rounds_finished);
  std::byte* output = work.outputs[0] + slice.begin;
  const bool staged = ring_.entry(rank_).location.slot == Location::kStaging;
  bool any = false;
  if (parts_taken_ == 0) {
    std::array<const std::byte*, kMaxRanks> sources;
    for (int rank = 0; rank < size_; ++rank) {
      sources[rank] = rank == rank_ ? output : locate(rank);
    }
    // The others read this part where this rank exposes its bytes.
    std::byte* destinations[] = {output, staged ? locate(rank_) : nullptr};
    work.sources_exposed |= !staged;
    const Slice own = part_of(slice, rank_);
    reduce({work.call.reduction, work.element_type, sources.data(), size_, destinations, staged ? 2 : 1,
            own.begin, own.bytes / work.element_bytes});
    ring_.piece_done();
    parts_taken_ = uint64_t{1} << rank_;
    any = true;
  }
  for (int rank = 0; rank < size_; ++rank) {
    if ((parts_taken_ >> rank & 1) == 0 && ring_.pieces_done_by(rank) > 0) {
      const Slice part = part_of(slice, rank);
      copy_bytes(output + part.begin, locate(rank) + part.begin, part.bytes);
      parts_taken_ |= uint64_t{1} << rank;
      any = true;
    }
  }
  if (std::popcount(parts_taken_) == size_) {
    finish_round(work);
  }
  return any;
}

void Collectives::exchange_sizes(CollectiveWork& work) {
  uint64_t largest = 0;
  for (int rank = 0; rank < size_; ++rank) {
    std::array<uint64_t, kMaxRanks> sizes;
    std::memcpy(sizes.data(), ring_.entry(rank).payload, size_ * sizeof(uint64_t));
    largest = std::max(largest, *std::max_element(sizes.begin(), sizes.begin() + size_));
    if (sizes[rank_] != work.output_bytes[rank]) {
      throw CommError(
          "shm",
          fmt::format("{}: rank {} sends {} elements to rank {}, which expects {}", describe(work.call), rank,
                      sizes[rank_] / work.element_bytes, rank_, work.output_bytes[rank] / work.element_bytes),
          CommError::Recovery::kFatal, rank);
    }
  }
  work.rounds_unknown = false;
  work.block_bytes = largest;
  work.num_rounds += largest == 0 ? 0 : rounds_for(work);
}

}  // namespace lockstep::comm::shm
