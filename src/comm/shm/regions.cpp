#include "comm/shm/regions.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <system_error>

#include "base/check.h"

namespace lockstep::comm::shm {

int OwnRegions::free_slot(Use use) const {
  if (use == Use::kTensor && num_tensors_ == kMaxTensorRegions) return -1;
  for (int slot = 0; slot < kMaxRegions; ++slot) {
    if (slots_[slot].memory == nullptr) return slot;
  }
  return -1;
}

std::shared_ptr<std::byte> OwnRegions::allocate(size_t bytes, Use use) {
  {
    const base::MutexLock lock(mutex_);
    if (free_slot(use) < 0) return nullptr;
  }
  auto memory = std::make_shared<Mapping>(Mapping::create(bytes));
  std::byte* data = memory->data();
  const base::MutexLock lock(mutex_);
  const int slot = free_slot(use);
  if (slot < 0) return nullptr;
  num_slots_used_ = std::max(num_slots_used_, slot + 1);
  num_tensors_ += use == Use::kTensor ? 1 : 0;
  slots_[slot] = {std::move(memory), ++last_id_, use};
  Region& region = home().regions[slot];
  region.fd = slots_[slot].memory->fd();
  region.bytes = bytes;
  region.owner_address = reinterpret_cast<uintptr_t>(&slots_[slot].memory);
  region.id.store(last_id_, std::memory_order_release);
  return {data, [self = shared_from_this(), slot](std::byte*) { self->release(slot); }};
}

void OwnRegions::release(int slot) {
  const base::MutexLock lock(mutex_);
  home().regions[slot].id.store(0, std::memory_order_relaxed);
  home().freed.fetch_add(1, std::memory_order_release);
  num_tensors_ -= slots_[slot].use == Use::kTensor ? 1 : 0;
  // Peers unmap the region at their next operation, which may be much later; the memory may be
  // needed before.
  slots_[slot].memory->release_pages();
  slots_[slot] = {};
}

std::optional<Location> OwnRegions::find(const void* data, size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const base::MutexLock lock(mutex_);
  for (int slot = 0; slot < num_slots_used_; ++slot) {
    const auto& [memory, id, use] = slots_[slot];
    if (memory != nullptr && begin >= memory->data() && begin + bytes <= memory->data() + memory->bytes())
      return Location{slot, id, static_cast<uint64_t>(begin - memory->data())};
  }
  return std::nullopt;
}

std::byte* PeerRegions::resolve(const Location& location) {
  base::check_lt(location.slot, kMaxRegions, "region slot");
  if (seen_.size() <= static_cast<size_t>(location.slot)) {
    seen_.resize(location.slot + 1);
  }
  auto& [id, memory] = seen_[location.slot];
  if (id != location.id) {
    const Region& region = peer_->home().regions[location.slot];
    base::check_eq(region.id.load(std::memory_order_acquire), location.id, "region id");
    memory.reset();
    if (peer_->same_process()) {
      memory = *reinterpret_cast<const std::shared_ptr<Mapping>*>(region.owner_address);
    } else {
      try {
        memory = std::make_shared<Mapping>(Mapping::open(peer_->process.pid(), region.fd, region.bytes));
      } catch (const std::system_error& error) {
        throw CommError("shm", fmt::format("cannot map the memory of a peer: {}", error.what()),
                        CommError::Recovery::kRebuild);
      }
    }
    id = location.id;
  }
  return memory->data() + location.offset;
}

void PeerRegions::forget_freed() {
  const uint64_t freed = peer_->home().freed.load(std::memory_order_acquire);
  if (freed == freed_) return;
  freed_ = freed;
  for (size_t slot = 0; slot < seen_.size(); ++slot) {
    if (seen_[slot].id != 0 &&
        peer_->home().regions[slot].id.load(std::memory_order_relaxed) != seen_[slot].id) {
      seen_[slot] = {};
    }
  }
}

}  // namespace lockstep::comm::shm
