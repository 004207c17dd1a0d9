// Tensors of files that Python wrote: .npy, .npz, safetensors and torch.save.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/weights.h>

#include <algorithm>
#include <cstring>

#include "base/tensor_file.h"
#include "checkpoint/dtype.h"
#include "checkpoint/torch_file.h"

namespace lockstep {
namespace checkpoint {
namespace {

constexpr char kDataComponent[] = "data";

at::ScalarType dtype_of(const base::FileTensor& tensor, const std::filesystem::path& path) {
  if (tensor.dtype == "C128") return at::kComplexDouble;
  if (const auto dtype = safetensors_dtype(tensor.dtype)) return *dtype;
  throw ConfigError(kDataComponent,
                    fmt::format("{} has elements of an unknown type: {}", tensor.place(path), tensor.dtype));
}

// Shares the bytes.
at::Tensor tensor_of(const base::FileTensor& tensor, const std::filesystem::path& path) {
  const at::TensorOptions options(dtype_of(tensor, path));
  std::vector<int64_t> shape = tensor.shape;
  if (tensor.is_fortran) std::reverse(shape.begin(), shape.end());
  const auto element_bytes = static_cast<uintptr_t>(base::tensor_dtype_bytes(tensor.dtype));
  const bool is_aligned = reinterpret_cast<uintptr_t>(tensor.bytes.data()) % element_bytes == 0;
  at::Tensor result;
  if (tensor.bytes.empty() || !is_aligned) {
    result = at::empty(shape, options);
    if (!tensor.bytes.empty())
      std::memcpy(result.mutable_data_ptr(), tensor.bytes.data(), tensor.bytes.size());
  } else {
    result = at::from_blob(
        const_cast<uint8_t*>(tensor.bytes.data()), shape, [owner = tensor.owner](void*) {}, options);
  }
  if (!tensor.is_fortran) return result;
  std::vector<int64_t> order(shape.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
  return result.permute(order);
}

}  // namespace
}  // namespace checkpoint

NamedTensors read_tensors(const std::filesystem::path& file) {
  using namespace checkpoint;
  // torch.save's files are zip archives too: NumPy's have arrays in them.
  NamedTensors tensors;
  if (base::is_tensor_file(file)) {
    for (const base::FileTensor& tensor : base::read_tensor_file(file, kDataComponent)) {
      tensors.emplace_back(tensor.name, tensor_of(tensor, file));
    }
  }
  return tensors.empty() ? read_torch_file(file) : tensors;
}

at::Tensor read_tensor(const std::string& source, std::initializer_list<std::string_view> usual_names) {
  const base::TensorSource parsed = base::parse_tensor_source(source);
  const NamedTensors tensors = read_tensors(parsed.path);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return tensors[base::select_tensor(parsed, names, usual_names, checkpoint::kDataComponent)].second;
}

}  // namespace lockstep
