#include "interop/stored_tensor.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

#include "interop/pickle.h"

namespace lockstep::interop {
namespace {

// A complex number is two numbers of half its size.
void swap_bytes(at::Tensor& bytes, at::ScalarType type) {
  const size_t width = c10::elementSize(type) / (c10::isComplexType(type) ? 2 : 1);
  auto* data = static_cast<char*>(bytes.data_ptr());
  for (size_t i = 0; width > 1 && i + width <= bytes.nbytes(); i += width)
    std::reverse(data + i, data + i + width);
}

}  // namespace

std::optional<TensorExtent> extent_of(const TensorReference& tensor) {
  const uint64_t item_bytes = c10::elementSize(tensor.dtype);
  auto last = static_cast<uint64_t>(tensor.offset);
  uint64_t numel = 1;
  bool empty = false;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    const auto size = static_cast<uint64_t>(tensor.sizes[i]);
    if (size == 0) {
      empty = true;
      continue;
    }
    uint64_t step = 0;
    if (__builtin_mul_overflow(size - 1, static_cast<uint64_t>(tensor.strides[i]), &step))
      return std::nullopt;
    if (__builtin_add_overflow(last, step, &last)) return std::nullopt;
    if (__builtin_mul_overflow(numel, size, &numel)) return std::nullopt;
  }
  TensorExtent extent;
  if (__builtin_mul_overflow(numel, item_bytes, &extent.bytes)) return std::nullopt;
  if (extent.bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  if (empty) return TensorExtent{};
  if (__builtin_add_overflow(last, uint64_t{1}, &last)) return std::nullopt;
  if (__builtin_mul_overflow(last, item_bytes, &extent.reach)) return std::nullopt;
  return extent;
}

const at::Tensor& StoredTensors::storage(const TensorReference& reference) {
  const std::string& key = reference.storage.key;
  if (const auto found = storages_.find(key); found != storages_.end()) return found->second;
  const size_t bytes = size_(key);
  if (bytes > limit_ - used_) {
    throw PickleError(fmt::format("its storages take more than the {} bytes of the file", limit_));
  }
  used_ += bytes;
  at::Tensor memory = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  if (bytes > 0) fetch_(key, memory.data_ptr(), bytes);  // an empty tensor has no memory
  if (swap_bytes_) swap_bytes(memory, reference.dtype);
  return storages_.emplace(key, std::move(memory)).first->second;
}

at::Tensor StoredTensors::tensor(const TensorReference& reference) {
  const auto extent = extent_of(reference);
  if (!extent) throw PickleError("its sizes overflow");
  const auto [reach, bytes] = *extent;
  const at::Tensor& memory = storage(reference);
  if (reach > memory.nbytes()) {
    throw PickleError(fmt::format("it reaches to byte {} of a storage of {}", reach, memory.nbytes()));
  }
  // Strides of 0 make much of little: fine to hold, but whoever copies it pays.
  if (bytes > std::max<uint64_t>(limit_, uint64_t{1} << 20)) {
    throw PickleError(fmt::format("it would take {} bytes, more than the file", bytes));
  }
  at::Tensor result =
      at::empty({0}, at::TensorOptions().dtype(reference.dtype))
          .set_(memory.storage(), bytes == 0 ? 0 : reference.offset, reference.sizes, reference.strides);
  if (reference.conjugate && result.is_complex()) result = result.conj().resolve_conj();
  if (reference.negative) result = result.neg();
  return result;
}

NamedTensors StoredTensors::make(const TensorReferences& references) {
  NamedTensors result;
  result.reserve(references.size());
  // The same object under two names stays one tensor.
  std::unordered_map<const TensorReference*, at::Tensor> made;
  for (const auto& [name, reference] : references) {
    at::Tensor& tensor = made[reference];
    try {
      if (!tensor.defined()) tensor = this->tensor(*reference);
    } catch (const PickleError& error) {
      throw PickleError(fmt::format("tensor '{}': {}", name.substr(0, 200), error.what()));
    }
    result.emplace_back(name, tensor);
  }
  return result;
}

}  // namespace lockstep::interop
