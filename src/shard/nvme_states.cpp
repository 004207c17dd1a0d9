#include "shard/nvme_states.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "grad/lent_memory.h"

namespace lockstep::shard {

namespace {

constexpr int64_t kBlock = base::AsyncFile::kAlignment;

int64_t whole_blocks(int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

at::Tensor aligned_bytes(int64_t bytes) {
  const at::Tensor memory = at::empty({bytes + kBlock}, at::kByte);
  const auto address = reinterpret_cast<uintptr_t>(memory.mutable_data_ptr());
  const auto skip = static_cast<int64_t>((kBlock - address % kBlock) % kBlock);
  return memory.narrow(0, skip, bytes);
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

void release(void* owner) { delete static_cast<at::Tensor*>(owner); }

// REQUIRES: the tensor begins where its storage does.
void lend(const at::Tensor& tensor, char* memory, const at::Tensor& owner) {
  c10::StorageImpl& storage = storage_of(tensor);
  storage.set_data_ptr_noswap({memory, new at::Tensor(owner), &release, at::kCPU});
  storage.set_nbytes(tensor.nbytes());
}

}  // namespace

NvmeStates::NvmeStates(const OffloadOptimizer& options, const Aio& aio,
                       const std::vector<int64_t>& tensor_bytes, const std::vector<int64_t>& max_tensors)
    : options_(options) {
  int64_t bytes = 0;
  int64_t largest = 0;
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    const int64_t stride = whole_blocks(tensor_bytes[i]);
    buckets_.push_back({bytes, stride, max_tensors[i], {}});
    bytes += stride * max_tensors[i];
    largest = std::max(largest, stride * max_tensors[i]);
  }
  file_ = std::make_unique<base::AsyncFile>(
      options.nvme_path, bytes,
      base::BlockIoOptions{.block_bytes = aio.block_size, .queue_depth = static_cast<int>(aio.queue_depth)});
  const auto count = std::min<size_t>(static_cast<size_t>(options.buffer_count), buckets_.size());
  buffers_.resize(count);
  for (Buffer& buffer : buffers_) buffer.bytes = aligned_bytes(largest);
}

// Tensors that the optimizer still has own a reference to their buffer.
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
  // The file does one thing after the other: what is still being written of the buffer is
  // written before it is read into.
  const Bucket& own = buckets_[bucket];
  const int64_t bytes = own.stride_bytes * static_cast<int64_t>(own.tensors.size());
  found->read = file_->read(found->bytes.mutable_data_ptr(), own.offset, bytes);
  return &*found;
}

NvmeStates::Buffer& NvmeStates::fetch(size_t bucket) {
  if (Buffer* buffer = find(bucket)) return *buffer;
  if (Buffer* buffer = take_free(bucket)) return *buffer;
  // All are taken by what was read ahead for nothing, or left open by an exception.
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
  for (size_t i = 0; i < own.tensors.size(); ++i) lend(own.tensors[i], place(buffer, own, i), buffer.bytes);
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
  for (const at::Tensor& tensor : own.tensors) grad::LentMemory::hollow(tensor);
  for (const at::Tensor& tensor : tensors) grad::LentMemory::hollow(tensor);
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
  for (const at::Tensor& tensor : buckets_[bucket].tensors) grad::LentMemory::hollow(tensor);
  buffer->is_open = false;
  buffer->bucket.reset();
}

at::Tensor NvmeStates::copy_of(size_t bucket, const at::Tensor& tensor, int64_t first, int64_t count) {
  const Bucket& own = buckets_[bucket];
  const auto found = std::find_if(own.tensors.begin(), own.tensors.end(),
                                  [&](const at::Tensor& other) { return other.is_same(tensor); });
  base::check(found != own.tensors.end(), "a tensor is asked for that is not stored");
  const auto item = static_cast<int64_t>(tensor.element_size());
  const int64_t begin = first * item / kBlock * kBlock;
  const int64_t blocks = whole_blocks((first + count) * item) - begin;
  const at::Tensor bytes = aligned_bytes(blocks);
  const int64_t offset = own.offset + own.stride_bytes * (found - own.tensors.begin()) + begin;
  {
    const std::lock_guard lock(copy_mutex_);
    file_->wait(file_->read(bytes.mutable_data_ptr(), offset, blocks));
  }
  return bytes.narrow(0, first * item - begin, count * item).view(tensor.scalar_type());
}

void NvmeStates::settle() {
  for (const base::AsyncFile::Ticket ticket : std::exchange(writes_, {})) file_->wait(ticket);
}

int64_t NvmeStates::buffer_bytes() const {
  int64_t bytes = 0;
  for (const Buffer& buffer : buffers_) bytes += buffer.bytes.numel();
  return bytes;
}

}  // namespace lockstep::shard
