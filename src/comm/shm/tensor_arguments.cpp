#include "comm/shm/tensor_arguments.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <numeric>
#include <optional>

namespace lockstep::comm::shm {
namespace {

[[noreturn]] void refuse(const char* operation, const std::string& why) {
  throw ConfigError("shm", fmt::format("{}: {}", operation, why));
}

std::string describe_tensor(const at::Tensor& tensor) {
  return fmt::format("{} {} on {}", tensor.numel(), c10::toString(tensor.scalar_type()),
                     tensor.device().str());
}

std::optional<ElementType> element_type_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float: return ElementType::kFloat;
    case c10::ScalarType::Double: return ElementType::kDouble;
    case c10::ScalarType::Half: return ElementType::kHalf;
    case c10::ScalarType::BFloat16: return ElementType::kBFloat16;
    case c10::ScalarType::Char: return ElementType::kInt8;
    case c10::ScalarType::Short: return ElementType::kInt16;
    case c10::ScalarType::Int: return ElementType::kInt32;
    case c10::ScalarType::Long: return ElementType::kInt64;
    case c10::ScalarType::Byte: return ElementType::kUint8;
    case c10::ScalarType::Bool: return ElementType::kBool;
    default: return std::nullopt;
  }
}

std::optional<Reduction> reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return Reduction::kSum;
    case c10d::ReduceOp::AVG: return Reduction::kMean;
    case c10d::ReduceOp::PRODUCT: return Reduction::kProduct;
    case c10d::ReduceOp::MIN: return Reduction::kMin;
    case c10d::ReduceOp::MAX: return Reduction::kMax;
    case c10d::ReduceOp::BAND: return Reduction::kBitAnd;
    case c10d::ReduceOp::BOR: return Reduction::kBitOr;
    case c10d::ReduceOp::BXOR: return Reduction::kBitXor;
    default: return std::nullopt;
  }
}

}  // namespace

void check_tensor(const char* operation, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    refuse(operation, "got an undefined tensor");
  }
  if (!tensor.device().is_cpu() || tensor.layout() != c10::kStrided || !tensor.is_contiguous()) {
    refuse(operation,
           fmt::format("needs a dense contiguous tensor on the CPU, got {}{}; use .contiguous(), or "
                       "another backend for other devices",
                       describe_tensor(tensor),
                       tensor.layout() != c10::kStrided ? ", sparse" : ", maybe not contiguous"));
  }
}

void check_same_dtype(const char* operation, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type()) {
    refuse(operation, fmt::format("tensors differ in type: {} and {}", c10::toString(a.scalar_type()),
                                  c10::toString(b.scalar_type())));
  }
}

void check_blocks(const char* operation, const at::Tensor& whole, const at::Tensor& block, int count) {
  check_tensor(operation, whole);
  check_same_dtype(operation, whole, block);
  if (whole.numel() != block.numel() * count) {
    refuse(operation,
           fmt::format("needs {} blocks of {} elements, got {}", count, block.numel(), whole.numel()));
  }
}

void check_list(const char* operation, const std::vector<at::Tensor>& tensors, int count) {
  if (tensors.size() != static_cast<size_t>(count)) {
    refuse(operation, fmt::format("needs one tensor a rank: got {} for {} ranks", tensors.size(), count));
  }
  for (const auto& tensor : tensors) {
    check_tensor(operation, tensor);
  }
}

int check_root(const char* operation, int64_t root, int size) {
  if (root < 0 || root >= size) {
    refuse(operation, fmt::format("no such rank: {} of {}", root, size));
  }
  return static_cast<int>(root);
}

const at::Tensor& only(const char* operation, const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1) {
    refuse(operation, fmt::format("takes one tensor, got {}", tensors.size()));
  }
  check_tensor(operation, tensors[0]);
  return tensors[0];
}

const std::vector<at::Tensor>& only_list(const char* operation,
                                         const std::vector<std::vector<at::Tensor>>& lists, int count) {
  if (lists.size() != 1) {
    refuse(operation, fmt::format("takes one list of tensors, got {}", lists.size()));
  }
  check_list(operation, lists[0], count);
  return lists[0];
}

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

Call call_for(Kind kind, const at::Tensor& tensor, int root) {
  return {.kind = kind,
          .dtype = tensor.scalar_type(),
          .root = root,
          .numel = static_cast<uint64_t>(tensor.numel())};
}

void set_reduction(CollectiveWork& work, const c10d::ReduceOp& op) {
  const auto reduction = reduction_of(op);
  const auto type = element_type_of(work.call.dtype);
  if (!reduction || !type || !can_reduce(*reduction, *type)) {
    refuse("reduction", fmt::format("{} cannot be combined by {}", c10::toString(work.call.dtype),
                                    reduction ? to_string(*reduction) : "this operation"));
  }
  work.call.reduction = *reduction;
  work.element_type = *type;
}

void expose(CollectiveWork& work, const at::Tensor& tensor, int blocks, bool exposes) {
  work.block_bytes = tensor.nbytes() / blocks;
  work.exposes = exposes;
  for (int i = 0; i < blocks; ++i) {
    work.sources.push_back(bytes_of(tensor) + i * work.block_bytes);
  }
  work.tensors.push_back(tensor);
}

void expose_list(CollectiveWork& work, const std::vector<at::Tensor>& tensors, const at::Tensor& like) {
  work.exposes = true;
  work.contiguous_sources = false;
  for (const auto& tensor : tensors) {
    check_blocks("list of inputs", tensor, like, 1);
    work.sources.push_back(bytes_of(tensor));
    work.tensors.push_back(tensor);
  }
}

void add_outputs(CollectiveWork& work, const std::vector<at::Tensor>& outputs, const at::Tensor& like) {
  for (const auto& output : outputs) {
    check_blocks("list of outputs", output, like, 1);
    work.outputs.push_back(bytes_of(output));
    work.tensors.push_back(output);
  }
}

void add_output_blocks(CollectiveWork& work, const at::Tensor& output, int blocks) {
  for (int i = 0; i < blocks; ++i) {
    work.outputs.push_back(bytes_of(output) + i * (output.nbytes() / blocks));
  }
  work.tensors.push_back(output);
}

void split_blocks(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size,
                  c10::SmallVector<std::byte*, 2>& blocks, std::vector<uint64_t>& block_bytes) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const bool evenly = splits.empty();
  // Each one by itself first: a negative one could make up for one that is too large.
  for (size_t rank = 0; rank < splits.size(); ++rank) {
    if (splits[rank] < 0 || splits[rank] > rows) {
      refuse("all_to_all",
             fmt::format("the part of rank {} cannot have {} of {} rows", rank, splits[rank], rows));
    }
  }
  if (evenly ? rows % size != 0
             : splits.size() != static_cast<size_t>(size) ||
                   std::accumulate(splits.begin(), splits.end(), int64_t{0}) != rows) {
    refuse("all_to_all", fmt::format("the first dimension of {} does not split into {} parts as told", rows,
                                     evenly ? size : splits.size()));
  }
  const uint64_t row_bytes = rows == 0 ? 0 : tensor.nbytes() / rows;
  std::byte* begin = bytes_of(tensor);
  for (int rank = 0; rank < size; ++rank) {
    blocks.push_back(begin);
    block_bytes.push_back(row_bytes * static_cast<uint64_t>(evenly ? rows / size : splits[rank]));
    begin += block_bytes.back();
  }
}

at::Tensor allocate_tensor(OwnRegions& regions, int64_t numel, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) {
    refuse("allocate", fmt::format("only on the CPU, not on {}", options.device().str()));
  }
  const size_t bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  auto memory = bytes == 0 ? nullptr : regions.allocate(bytes);
  if (memory == nullptr) {
    return at::empty({numel}, options);
  }
  std::byte* data = memory.get();
  return at::from_blob(
      data, {numel}, [memory = std::move(memory)](void*) {}, options);
}

}  // namespace lockstep::comm::shm
