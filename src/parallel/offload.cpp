#include "parallel/offload.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "parallel/flat_buffer.h"

namespace lockstep::parallel {

namespace {

constexpr int64_t kHostAlignment = 64;
constexpr uint64_t kMaxSlabBytes = uint64_t{1} << 30;
constexpr int64_t kBlock = base::AsyncFile::kAlignment;

int64_t round_to_blocks(int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

at::Tensor block_aligned(int64_t bytes) {
  const at::Tensor memory = at::empty({bytes + kBlock}, at::kByte);
  const auto address = reinterpret_cast<uintptr_t>(memory.mutable_data_ptr());
  const auto skip = static_cast<int64_t>((kBlock - address % kBlock) % kBlock);
  return memory.narrow(0, skip, bytes);
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

// --- copies ---

CopyLane::CopyLane(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

void CopyLane::Mark::wait_on_device() const {
  if (event_) event_->block(current_stream(*device_));
}

void CopyLane::Mark::wait() const {
  if (event_) event_->synchronize();
}

void CopyLane::follow_current() const {
  c10::Event event(device_.type());
  event.record(current_stream(device_));
  event.block(*stream_);
}

CopyLane::Mark CopyLane::mark() const {
  Mark mark;
  mark.device_ = device_;
  mark.event_ = std::make_shared<c10::Event>(device_.type());
  mark.event_->record(*stream_);
  return mark;
}

CopyLane::Mark CopyLane::copy(const at::Tensor& to, const at::Tensor& from) {
  const at::NoGradGuard no_grad;
  if (is_plain()) {
    to.copy_(from);
    return {};
  }
  follow_current();
  const c10::StreamGuard guard(*stream_);
  to.copy_(from, /*non_blocking=*/true);
  // The allocator must not reuse the memory before the copy is done.
  for (const at::Tensor& tensor : {to, from}) {
    if (!tensor.is_cpu()) tensor.record_stream(*stream_);
  }
  return mark();
}

void CopyLane::finish() {
  if (stream_) stream_->synchronize();
}

// --- host memory ---

at::Tensor HostMemory::allocate_bytes(int64_t bytes) const {
  const auto options = at::TensorOptions(at::kByte).device(at::kCPU);
  if (!pinned_) return at::empty({bytes}, options);
  try {
    return at::empty({bytes}, options.pinned_memory(true));
  } catch (const c10::Error& error) {
    throw ConfigError("shard", fmt::format("the system gives no {} bytes of page-locked memory for offload; "
                                           "set pin_memory to false, or allow more (ulimit -l): {}",
                                           bytes, error.what_without_backtrace()));
  }
}

at::Tensor HostMemory::allocate(int64_t numel, c10::ScalarType dtype) {
  const auto payload = numel * static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t bytes = (payload + kHostAlignment - 1) / kHostAlignment * kHostAlignment;
  if (!pinned_) {
    slab_ = allocate_bytes(bytes);
    used_bytes_ = 0;
  } else if (!slab_.defined() || used_bytes_ + bytes > slab_.numel()) {
    const uint64_t all = std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(expected_bytes_, 1)));
    const uint64_t least = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(bytes, 1)));
    slab_ = allocate_bytes(static_cast<int64_t>(std::max(least, std::min(all, kMaxSlabBytes))));
    used_bytes_ = 0;
  }
  expected_bytes_ -= bytes;
  const int64_t offset = used_bytes_ / static_cast<int64_t>(c10::elementSize(dtype));
  used_bytes_ += bytes;
  // A leaf over the slab's memory: optimizers take no views.
  at::Tensor tensor = at::empty({0}, slab_.options().dtype(dtype).pinned_memory(false));
  return tensor.set_(slab_.storage(), offset, {numel});
}

// --- a file ---

NvmeStates::NvmeStates(const OffloadOptimizer& options, const Aio& aio,
                       const std::vector<int64_t>& tensor_bytes, const std::vector<int64_t>& max_tensors)
    : options_(options) {
  int64_t bytes = 0;
  int64_t largest = 0;
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    const int64_t stride = round_to_blocks(tensor_bytes[i]);
    buckets_.push_back({bytes, stride, max_tensors[i], {}});
    bytes += stride * max_tensors[i];
    largest = std::max(largest, stride * max_tensors[i]);
  }
  file_ = std::make_unique<base::AsyncFile>(
      options.nvme_path, bytes,
      base::BlockIoOptions{.block_bytes = aio.block_size, .queue_depth = static_cast<int>(aio.queue_depth)});
  const auto count = std::min<size_t>(static_cast<size_t>(options.buffer_count), buckets_.size());
  buffers_.resize(count);
  for (Buffer& buffer : buffers_) buffer.bytes = block_aligned(largest);
}

// Tensors that the optimizer still holds own a reference to their buffer.
NvmeStates::~NvmeStates() = default;

NvmeStates::Buffer* NvmeStates::find(size_t bucket) {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                  [&](const Buffer& buffer) { return buffer.bucket == bucket; });
  return found == buffers_.end() ? nullptr : &*found;
}

NvmeStates::Buffer* NvmeStates::take_free(size_t bucket) {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                  [](const Buffer& buffer) { return !buffer.bucket.has_value(); });
  if (found == buffers_.end()) return nullptr;
  found->bucket = bucket;
  // The file runs its requests one after the other: a write from this buffer is done before the read
  // into it.
  const Bucket& own = buckets_[bucket];
  const int64_t bytes = own.stride_bytes * static_cast<int64_t>(own.tensors.size());
  found->read = file_->read(found->bytes.mutable_data_ptr(), own.offset, bytes);
  return &*found;
}

NvmeStates::Buffer& NvmeStates::fetch(size_t bucket) {
  if (Buffer* buffer = find(bucket)) return *buffer;
  if (Buffer* buffer = take_free(bucket)) return *buffer;
  // All hold buckets that were read ahead and not used, or that an exception left open.
  for (Buffer& buffer : buffers_) {
    if (buffer.is_open) discard(*buffer.bucket);
    buffer.bucket.reset();
  }
  return *take_free(bucket);
}

char* NvmeStates::place(const Buffer& buffer, const Bucket& bucket, size_t tensor) const {
  return static_cast<char*>(buffer.bytes.mutable_data_ptr()) +
         static_cast<int64_t>(tensor) * bucket.stride_bytes;
}

void NvmeStates::prefetch(size_t bucket) {
  if (options_.pipeline_read && find(bucket) == nullptr) take_free(bucket);
}

void NvmeStates::open(size_t bucket) {
  Buffer& buffer = fetch(bucket);
  if (buffer.is_open) return;
  file_->wait(buffer.read);
  const Bucket& own = buckets_[bucket];
  for (size_t i = 0; i < own.tensors.size(); ++i) {
    LentMemory::attach(own.tensors[i], place(buffer, own, i), buffer.bytes);
  }
  buffer.is_open = true;
}

void NvmeStates::store(size_t bucket, const std::vector<at::Tensor>& tensors) {
  Bucket& own = buckets_[bucket];
  base::check(static_cast<int64_t>(tensors.size()) <= own.max_tensors,
              "a bucket has more state than planned");
  open(bucket);
  Buffer& buffer = *find(bucket);
  for (size_t i = 0; i < tensors.size(); ++i) {
    base::check_eq(tensors[i].storage_offset(), int64_t{0}, "where a stored tensor begins in its storage");
    char* memory = place(buffer, own, i);
    const auto* content = static_cast<const char*>(tensors[i].const_data_ptr());
    if (content != memory) std::memcpy(memory, content, tensors[i].nbytes());
  }
  for (const at::Tensor& tensor : own.tensors) LentMemory::hollow(tensor);
  for (const at::Tensor& tensor : tensors) LentMemory::hollow(tensor);
  own.tensors = tensors;
  const int64_t bytes = own.stride_bytes * static_cast<int64_t>(tensors.size());
  const auto ticket = file_->write(buffer.bytes.const_data_ptr(), own.offset, bytes);
  buffer.is_open = false;
  buffer.bucket.reset();
  if (options_.pipeline_write) {
    writes_.push_back(ticket);
  } else {
    file_->wait(ticket);
  }
}

void NvmeStates::discard(size_t bucket) {
  Buffer* buffer = find(bucket);
  if (buffer == nullptr) return;
  for (const at::Tensor& tensor : buckets_[bucket].tensors) LentMemory::hollow(tensor);
  buffer->is_open = false;
  buffer->bucket.reset();
}

at::Tensor NvmeStates::copy_of(size_t bucket, const at::Tensor& tensor, int64_t first, int64_t count) {
  const Bucket& own = buckets_[bucket];
  const auto found = std::find_if(own.tensors.begin(), own.tensors.end(),
                                  [&](const at::Tensor& other) { return other.is_same(tensor); });
  base::check(found != own.tensors.end(), "the tensor is not stored");
  const auto item = static_cast<int64_t>(tensor.element_size());
  const int64_t begin = first * item / kBlock * kBlock;
  const int64_t blocks = round_to_blocks((first + count) * item) - begin;
  const at::Tensor bytes = block_aligned(blocks);
  const int64_t offset = own.offset + own.stride_bytes * (found - own.tensors.begin()) + begin;
  {
    const base::MutexLock lock(copy_mutex_);
    file_->wait(file_->read(bytes.mutable_data_ptr(), offset, blocks));
  }
  return bytes.narrow(0, first * item - begin, count * item).view(tensor.scalar_type());
}

void NvmeStates::finish_writes() {
  for (const base::AsyncFile::Ticket ticket : std::exchange(writes_, {})) file_->wait(ticket);
}

int64_t NvmeStates::buffer_bytes() const {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.bytes.numel();
  return bytes;
}

}  // namespace lockstep::parallel
