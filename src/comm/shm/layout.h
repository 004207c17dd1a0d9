#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

// The shared memory of a group. Every rank owns one Home, which all others map. Only its owner
// writes to it, except for the claims of rank 0, the replies in a Post, and reduced tensors. All
// ranks run the same build: the layout version refuses others.
namespace lockstep::comm::shm {

inline constexpr uint32_t kLayoutVersion = 2;
inline constexpr int kMaxRanks = 64;
inline constexpr size_t kCacheLine = 64;

// A collective runs in rounds of at most kRoundBytes, so that staging memory is bounded and copying
// overlaps with reducing. All rounds of a group are numbered from 1 in one sequence; a rank has at
// most kRing rounds that it has published and not all ranks have finished.
inline constexpr uint64_t kRing = 32;
inline constexpr size_t kRoundBytes = 512 * 1024;
inline constexpr int kStagingSlots = 4;
// Payloads up to this size are sent in the entry of their round.
inline constexpr size_t kInlineBytes = 4096;
// Messages to one peer that wait for its recv.
inline constexpr int kPosts = 16;
// Shared tensors that a rank can have at one time; more are in ordinary memory.
inline constexpr int kMaxTensorRegions = 256;
// Regions that a rank can have: enough for every message that may be posted.
inline constexpr int kMaxRegions = kMaxTensorRegions + kMaxRanks * kPosts;

template <typename T>
concept SharedAtomic = std::atomic<T>::is_always_lock_free;
static_assert(SharedAtomic<uint64_t> && SharedAtomic<uint32_t> && SharedAtomic<int32_t>);

// Where a rank's bytes are. `slot` indexes its region table; `id` distinguishes successive regions
// of one slot.
struct Location {
  static constexpr int32_t kNothing = -3;  // this rank contributes no bytes
  static constexpr int32_t kInline = -2;   // in the entry of the round
  static constexpr int32_t kStaging = -1;  // in the home's staging area

  int32_t slot = kNothing;
  uint32_t id = 0;
  uint64_t offset = 0;
};

// What all ranks must call alike. Packed so that comparing costs two loads.
struct Signature {
  uint64_t call = 0;   // kind, reduction, dtype, root and round: see sign()
  uint64_t numel = 0;  // elements of the whole call

  bool operator==(const Signature&) const = default;
};

// One published round.
struct alignas(kCacheLine) Entry {
  std::atomic<uint64_t> ready;  // sequence number; stored last, with release
  Signature signature;
  Location location;
  uint64_t stride;  // bytes between the blocks at the location
  alignas(kCacheLine) std::byte payload[kInlineBytes];
};

// A rank's progress with the pieces of a reduction that all ranks share.
struct alignas(kCacheLine) PieceCount {
  std::atomic<uint32_t> done;
  std::atomic<uint32_t> busy;  // 1 while the rank is reducing
};

// The next unclaimed piece of a round: sequence << 20 | piece. In rank 0's home.
struct alignas(kCacheLine) Claim {
  std::atomic<uint64_t> next;
};

// A region that peers may map: memory file `fd` of the owner.
struct Region {
  std::atomic<uint32_t> id;  // 0: free
  int32_t fd;
  uint64_t bytes;
  uint64_t owner_address;  // of its std::shared_ptr<Mapping>, for ranks of one process
};

// A message from the home's owner to one peer.
struct alignas(kCacheLine) Post {
  static constexpr uint64_t kFree = 0;

  std::atomic<uint64_t> number;  // kFree, or the count of the pair's messages; stored last
  uint64_t bytes;
  int32_t tag;
  Location location;
};

enum class RankState : uint32_t {
  kActive,
  kLeft,   // closed the group
  kFailed  // failed: `failure` has the reason
};
static_assert(SharedAtomic<RankState>);

struct Failure {
  int32_t rank;  // that caused it, or -1
  uint32_t can_rebuild;
  char text[504];
};

struct Home {
  std::atomic<uint64_t> magic;  // a random number that the owner sends through the store
  alignas(kCacheLine) std::atomic<RankState> state;
  Failure failure;                                     // valid once state is kFailed
  alignas(kCacheLine) std::atomic<uint64_t> finished;  // rounds that this rank has finished
  alignas(kCacheLine) std::atomic<uint64_t> freed;     // regions this rank has freed
  std::array<Claim, kRing> claims;                     // used in rank 0's home only
  std::array<PieceCount, kRing> pieces;
  std::array<Entry, kRing> entries;
  std::array<Region, kMaxRegions> regions;
  std::array<std::array<Post, kPosts>, kMaxRanks> posts;  // by destination
  alignas(4096) std::byte staging[kStagingSlots][kRoundBytes];
};

}  // namespace lockstep::comm::shm
