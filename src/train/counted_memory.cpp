#include "train/counted_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <new>

namespace lockstep::train {
namespace {

// Above that of any allocator that LibTorch brings.
constexpr uint8_t kPriority = 255;

struct Count {
  std::atomic<int64_t> live = 0;
  std::atomic<int64_t> peak = 0;

  void add(int64_t bytes) {
    const int64_t now = live += bytes;
    int64_t most = peak;
    while (now > most && !peak.compare_exchange_weak(most, now)) {
    }
  }
};

// What lies before the memory of each tensor: some of LibTorch's kernels free memory by its
// address alone.
struct alignas(64) Header {
  c10::DataPtr memory;  // of the header and of what follows it
  std::shared_ptr<Count> count;
  int64_t bytes = 0;
};

void release(void* data) {
  if (data == nullptr) return;
  Header* const header = static_cast<Header*>(data) - 1;
  header->count->live -= header->bytes;
  const c10::DataPtr memory = std::move(header->memory);
  header->~Header();
}

class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator(c10::Allocator& real, std::shared_ptr<Count> count)
      : real_(real), count_(std::move(count)) {}

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    c10::DataPtr memory = real_.allocate(sizeof(Header) + bytes);
    void* const place = memory.get();
    auto* const header = new (place) Header{std::move(memory), count_, static_cast<int64_t>(bytes)};
    count_->add(header->bytes);
    void* const data = header + 1;
    return {data, data, &release, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    real_.copy_data(destination, source, bytes);
  }

 private:
  c10::Allocator& real_;
  const std::shared_ptr<Count> count_;
};

}  // namespace

struct CountedMemory::Impl {
  c10::Allocator* before = c10::GetCPUAllocator();
  std::shared_ptr<Count> count = std::make_shared<Count>();
  CountingAllocator allocator{*before, count};
};

CountedMemory::CountedMemory() : impl_(std::make_unique<Impl>()) {
  c10::SetCPUAllocator(&impl_->allocator, kPriority);
}

CountedMemory::~CountedMemory() { c10::SetCPUAllocator(impl_->before, kPriority); }

int64_t CountedMemory::live_bytes() const { return impl_->count->live; }
int64_t CountedMemory::peak_bytes() const { return impl_->count->peak; }
void CountedMemory::reset_peak() const { impl_->count->peak = impl_->count->live.load(); }

}  // namespace lockstep::train
