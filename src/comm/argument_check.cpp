#include "comm/argument_check.h"

#include <ATen/ops/view.h>
#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>

namespace lockstep::comm {
namespace {

// The dtypes that Gloo supports; all other backends support them too.
bool is_native(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong: return true;
    default: return false;
  }
}

// complex32 is left out: few operations of LibTorch support it.
bool is_complex(at::ScalarType dtype) { return dtype == at::kComplexFloat || dtype == at::kComplexDouble; }

bool supports(Transport::Devices devices, const at::Device& device) {
  switch (devices) {
    case Transport::Devices::kCpu: return device.is_cpu();
    case Transport::Devices::kCuda: return device.is_cuda();
    case Transport::Devices::kAny: return true;
  }
  return false;
}

const char* device_name(Transport::Devices devices) {
  return devices == Transport::Devices::kCpu ? "the CPU" : "a CUDA device";
}

}  // namespace

void ArgumentCheck::fail(std::string_view sentence) const {
  throw ConfigError("comm", fmt::format("{} on rank {} of {}: {}", operation_, rank_, size_, sentence));
}

void ArgumentCheck::tensor(std::string_view name, const at::Tensor& tensor) const {
  if (!tensor.defined()) {
    fail(fmt::format("{} is undefined", name));
  }
  if (tensor.layout() != at::kStrided) {
    fail(fmt::format("{} is not a dense tensor: layout {}", name, c10::str(tensor.layout())));
  }
  if (!tensor.is_contiguous()) {
    fail(fmt::format("{} is not contiguous, pass {}.contiguous(): sizes [{}], strides [{}]", name, name,
                     fmt::join(tensor.sizes(), ", "), fmt::join(tensor.strides(), ", ")));
  }
  if (tensor.is_conj()) {
    fail(fmt::format("{} is a conjugate view, pass {}.resolve_conj()", name, name));
  }
  if (!supports(transport_.devices, tensor.device())) {
    fail(fmt::format("backend {} needs tensors on {}: {} is on {}", transport_.name,
                     device_name(transport_.devices), name, tensor.device().str()));
  }
}

void ArgumentCheck::message(std::string_view name, const at::Tensor& tensor) const {
  this->tensor(name, tensor);
  // Gloo copies the tensors of collectives from a GPU to the host, but passes the address of a
  // message to the network unchanged.
  if (transport_.name == "gloo" && !tensor.is_cpu()) {
    fail(fmt::format("backend gloo passes messages on the CPU only, pass {}.cpu(): {} is on {}", name, name,
                     tensor.device().str()));
  }
}

void ArgumentCheck::reducible(std::string_view name, const at::Tensor& tensor, ReduceOp op) const {
  if (is_complex(tensor.scalar_type())) {
    if (op == ReduceOp::kSum || op == ReduceOp::kMean) return;
    fail(fmt::format("complex tensors are reduced by kSum or kMean only: {} is {}", name,
                     at::toString(tensor.scalar_type())));
  }
  if (!is_native(tensor.scalar_type())) {
    fail(fmt::format("a tensor of this dtype cannot be reduced: {} is {}", name,
                     at::toString(tensor.scalar_type())));
  }
  if (op == ReduceOp::kMean && !tensor.is_floating_point()) {
    fail(fmt::format("kMean needs a floating-point tensor: {} is {}", name,
                     at::toString(tensor.scalar_type())));
  }
}

void ArgumentCheck::same_type(std::string_view first_name, const at::Tensor& first,
                              std::string_view second_name, const at::Tensor& second) const {
  if (first.scalar_type() != second.scalar_type()) {
    fail(fmt::format("dtypes differ: {} is {}, {} is {}", first_name, at::toString(first.scalar_type()),
                     second_name, at::toString(second.scalar_type())));
  }
  if (first.device() != second.device()) {
    fail(fmt::format("devices differ: {} is on {}, {} on {}", first_name, first.device().str(), second_name,
                     second.device().str()));
  }
}

void ArgumentCheck::blocks(std::string_view whole_name, const at::Tensor& whole, std::string_view block_name,
                           const at::Tensor& block) const {
  tensor(whole_name, whole);
  tensor(block_name, block);
  same_type(whole_name, whole, block_name, block);
  if (whole.numel() != block.numel() * size_) {
    fail(fmt::format("{} must hold {} blocks of {}: {} elements against {} in [{}]", whole_name, size_,
                     block_name, whole.numel(), block.numel(), fmt::join(block.sizes(), ", ")));
  }
}

void ArgumentCheck::exchange(const at::Tensor& output, const at::Tensor& input) const {
  tensor("output", output);
  tensor("input", input);
  same_type("output", output, "input", input);
  if (output.numel() != input.numel() || input.numel() % size_ != 0) {
    fail(fmt::format("input and output must be {} equal blocks each: {} and {} elements", size_,
                     input.numel(), output.numel()));
  }
}

void ArgumentCheck::root(int root) const {
  if (root < 0 || root >= size_) {
    fail(fmt::format("root is not a rank of the group: {}", root));
  }
}

void ArgumentCheck::peer(std::string_view name, int peer) const {
  if (peer < 0 || peer >= size_ || peer == rank_) {
    fail(fmt::format("{} is not another rank of the group: {}", name, peer));
  }
}

at::Tensor wire_view(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.dim() == 1 ? tensor.detach() : tensor.detach().view(-1);
  if (is_complex(flat.scalar_type())) return at::view_as_real(flat).view(-1);
  return is_native(flat.scalar_type()) ? flat : flat.view(at::kByte);
}

}  // namespace lockstep::comm
