#include "comm/shm/collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace lockstep::comm::shm {
namespace {

// An all-reduce of at most this many bytes over all ranks is done by every rank
// for itself: one meeting of the ranks instead of two.
constexpr uint64_t kOneShotBytes = 64 * 1024;

}  // namespace

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
  work->divided = all_reduce && work->block_bytes * size_ > kOneShotBytes;
  // A one-shot all-reduce overwrites what peers still read: it needs the copy.
  if (work->exposes && work->contiguous_sources && (work->divided || !all_reduce) &&
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
      if (work.rounds_unknown) {
        break;
      }
      ++num_fully_published_;
      continue;
    }
    Entry* entry = ring_.next_entry();
    if (entry == nullptr || !expose(work, *entry)) {
      break;
    }
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
  if (!work.exposes) {
    return true;
  }
  const Slice slice = slice_of(work, round);
  if (work.location) {
    entry.location = *work.location;
    entry.location.offset += slice.begin;
    entry.stride = work.block_bytes;
    work.sources_exposed |= !work.divided;  // else it depends on the others
    return true;
  }
  entry.stride = slice.bytes;
  if (slice.bytes * num_blocks(work) <= kInlineBytes && !work.divided) {
    entry.location.slot = Location::kInline;
    copy_blocks(work, slice, entry.payload);
    return true;
  }
  // The first free slot, not the next: few slots in turn stay in the cache.
  const auto slot = std::find_if(slot_user_.begin(), slot_user_.end(),
                                 [this](uint64_t sequence) { return ring_.all_finished(sequence); });
  if (slot == slot_user_.end()) {
    return false;
  }
  *slot = ring_.published() + 1;
  const auto index = static_cast<size_t>(slot - slot_user_.begin());
  entry.location = {Location::kStaging, 0, index};
  copy_blocks(work, slice, ring_.home(rank_).staging[index]);
  return true;
}

void Collectives::copy_blocks(const CollectiveWork& work, Slice slice, std::byte* to) const {
  if (work.divided) {
    // Nobody else combines this rank's own part.
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
      continue;  // nobody else wants this rank's own block
    }
    const uint64_t bytes = bytes_within(slice, work.source_bytes, i);
    if (bytes > 0) {
      std::memcpy(to + i * slice.bytes, work.sources[i] + slice.begin, bytes);
    }
  }
}

uint64_t Collectives::bytes_within(Slice slice, const std::vector<uint64_t>& block_bytes, int block) {
  if (block_bytes.empty()) {
    return slice.bytes;
  }
  return block_bytes[block] <= slice.begin ? 0 : std::min(slice.bytes, block_bytes[block] - slice.begin);
}

bool Collectives::progress() {
  bool any = false;
  while (!queue_.empty()) {
    const bool published = publish_some();
    if (!step() && !published) {
      break;
    }
    any = true;
  }
  return any;
}

bool Collectives::step() {
  CollectiveWork& work = *queue_.front();
  if (lingering_) {
    if (!ring_.all_finished(ring_.finished())) {
      return false;
    }
    lingering_ = false;
    complete_front();
    return true;
  }
  if (work.rounds_finished == work.rounds_published || !ring_.all_arrived()) {
    return false;
  }
  if (!agreed_) {
    check_agreement(work);
    agreed_ = true;
  }
  if (work.divided) {
    return all_in_place() ? run_pieces(work) : run_parts(work);
  }
  run_round(work);
  finish_round(work);
  return true;
}

void Collectives::finish_round(CollectiveWork& work) {
  ring_.finish();
  agreed_ = false;
  parts_taken_ = 0;
  ++work.rounds_finished;
  if (work.rounds_finished < work.num_rounds) {
    return;
  }
  if (work.sources_exposed) {
    lingering_ = true;
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
  if (lingering_ || work.rounds_finished == work.rounds_published) {
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

}  // namespace lockstep::comm::shm
