// Operations of Communicator on tensors and bytes whose length only one rank knows.

#include <fmt/ranges.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>

#include <algorithm>
#include <array>

#include "comm/communicator_impl.h"

namespace lockstep {
namespace {

constexpr int64_t kMaxDims = 8;

// dtype, number of dimensions, dimensions.
using DtypeAndShape = std::array<int64_t, 2 + kMaxDims>;

DtypeAndShape shape_of(const at::Tensor& tensor) {
  DtypeAndShape shape{static_cast<int64_t>(tensor.scalar_type()), tensor.dim()};
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), shape.begin() + 2);
  return shape;
}

at::IntArrayRef sizes_in(const DtypeAndShape& shape) {
  return at::IntArrayRef(shape.data() + 2, static_cast<size_t>(shape[1]));
}

// Equal but for the first dimension.
bool compatible(DtypeAndShape a, DtypeAndShape b) {
  a[2] = b[2];
  return a == b;
}

at::Tensor byte_tensor(const std::string& bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(tensor.data_ptr()));
  return tensor;
}

std::string text_of(const at::Tensor& tensor) {
  const at::Tensor local = tensor.cpu();
  return std::string(reinterpret_cast<const char*>(local.const_data_ptr()),
                     static_cast<size_t>(local.numel()));
}

}  // namespace

std::vector<at::Tensor> Communicator::all_gather_uneven(const at::Tensor& input, Timeout timeout) const {
  const auto check = impl_->check("all_gather_uneven");
  check.tensor("input", input);
  if (input.dim() < 1 || input.dim() > kMaxDims) {
    check.fail(
        fmt::format("input must have 1 to {} dimensions: [{}]", kMaxDims, fmt::join(input.sizes(), ", ")));
  }
  at::NoGradGuard no_grad;
  const DtypeAndShape mine = shape_of(input);
  std::vector<DtypeAndShape> shapes(static_cast<size_t>(size()));
  const auto to_tensor = [](void* data, int64_t count) { return at::from_blob(data, {count}, at::kLong); };
  at::Tensor all = at::empty({size() * static_cast<int64_t>(mine.size())},
                             at::TensorOptions(at::kLong).device(input.device()));
  all_gather(all, to_tensor(const_cast<int64_t*>(mine.data()), mine.size()).to(input.device()), timeout)
      .wait();
  to_tensor(shapes.data(), all.numel()).copy_(all);
  impl_->throw_if_failed("all_gather_uneven", timeout);

  int64_t longest = 0;
  for (size_t peer = 0; peer < shapes.size(); ++peer) {
    if (!compatible(shapes[peer], mine)) {
      check.fail(fmt::format(
          "tensors differ in more than their first dimension: rank {} has {} [{}], this rank {} [{}]", peer,
          at::toString(static_cast<at::ScalarType>(shapes[peer][0])), fmt::join(sizes_in(shapes[peer]), ", "),
          at::toString(input.scalar_type()), fmt::join(input.sizes(), ", ")));
    }
    longest = std::max(longest, c10::multiply_integers(sizes_in(shapes[peer])));
  }
  at::Tensor padded = at::zeros({longest}, input.options().requires_grad(false));
  padded.narrow(0, 0, input.numel()).copy_(input.view(-1));
  at::Tensor gathered = at::empty({longest * size()}, padded.options());
  all_gather(gathered, padded, timeout).wait();

  std::vector<at::Tensor> result;
  for (size_t peer = 0; peer < shapes.size(); ++peer) {
    const at::IntArrayRef sizes = sizes_in(shapes[peer]);
    const at::Tensor block =
        gathered.narrow(0, static_cast<int64_t>(peer) * longest, c10::multiply_integers(sizes));
    result.push_back(block.clone().view(sizes));
  }
  return result;
}

std::string Communicator::broadcast_bytes(std::string bytes, int root, Timeout timeout) const {
  impl_->check("broadcast_bytes").root(root);
  const at::Device device = impl_->device();
  const at::Tensor length =
      at::full({1}, static_cast<int64_t>(bytes.size()), at::TensorOptions(at::kLong).device(device));
  broadcast(length, root, timeout).wait();
  const auto num_bytes = length.item<int64_t>();
  impl_->throw_if_failed("broadcast_bytes", timeout);
  const at::Tensor buffer = rank() == root
                                ? byte_tensor(bytes).to(device)
                                : at::empty({num_bytes}, at::TensorOptions(at::kByte).device(device));
  broadcast(buffer, root, timeout).wait();
  if (rank() == root) return bytes;
  std::string received = text_of(buffer);
  impl_->throw_if_failed("broadcast_bytes", timeout);
  return received;
}

std::vector<std::string> Communicator::all_gather_bytes(const std::string& bytes, Timeout timeout) const {
  std::vector<std::string> result;
  for (const at::Tensor& tensor : all_gather_uneven(byte_tensor(bytes).to(impl_->device()), timeout)) {
    result.push_back(text_of(tensor));
  }
  impl_->throw_if_failed("all_gather_bytes", timeout);
  return result;
}

std::vector<std::string> comm::gather_bytes(const Communicator& group, const std::string& bytes, int root) {
  const at::Device device = group.impl()->device();
  const at::Tensor lengths = at::empty({group.size()}, at::TensorOptions(at::kLong).device(device));
  group.all_gather(lengths, at::full({1}, static_cast<int64_t>(bytes.size()), lengths.options())).wait();
  const int64_t longest = lengths.max().item<int64_t>();
  at::Tensor padded = at::zeros({longest}, at::TensorOptions(at::kByte).device(device));
  padded.narrow(0, 0, static_cast<int64_t>(bytes.size())).copy_(byte_tensor(bytes));
  at::Tensor gathered;
  if (group.rank() == root) gathered = at::empty({longest * group.size()}, padded.options());
  group.gather(gathered, padded, root).wait();
  std::vector<std::string> result;
  for (int rank = 0; rank < group.size() && group.rank() == root; ++rank) {
    result.push_back(text_of(gathered.narrow(0, rank * longest, lengths[rank].item<int64_t>())));
  }
  return result;
}

}  // namespace lockstep
