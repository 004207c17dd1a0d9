// What a rank does in one round, once all ranks have arrived at it.

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "comm/shm/collectives.h"

namespace lockstep::comm::shm {
namespace {

constexpr uint64_t kSmallestPieceBytes = 16 * 1024;
constexpr uint64_t kPiecesPerRank = 4;

void copy_bytes(std::byte* to, const std::byte* from, uint64_t bytes) {
  if (to != from && bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

std::byte* Collectives::locate(int rank) {
  // Entries are read only by others; the pointer is mutable for tensors, which are
  // reduced in place.
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
  if (work.outputs.empty() || (slice.bytes == 0 && work.output_bytes.empty())) {
    return;
  }
  if (work.call.reduces()) {
    reduce_round(work, slice);
  } else {
    move_blocks(work, slice);
  }
}

void Collectives::move_blocks(CollectiveWork& work, Slice slice) {
  const bool block_for_each = num_blocks(work) > 1;
  const auto pull = [&](int from, std::byte* output, uint64_t bytes) {
    if (bytes == 0) {
      return;
    }
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
    const int from = (rank_ + i) % size_;  // not all from the same rank at once
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
    if (ring_.entry(rank).location.slot < 0) {
      return false;
    }
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
      // Only now: once all pieces are done a peer may have freed its tensor.
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
  if (!ring_.all_pieces_done(num_pieces)) {
    return any;
  }
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
    // The others find this part where this rank exposes its bytes.
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
