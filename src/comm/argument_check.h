#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>

#include <string_view>

#include "comm/transport.h"

namespace lockstep::comm {

// Checks the arguments of one operation on one rank. Each failure is a ConfigError that names the
// operation, the rank, the argument and its values.
class ArgumentCheck {
 public:
  ArgumentCheck(std::string_view operation, int rank, int size, const Transport& transport)
      : operation_(operation), rank_(rank), size_(size), transport_(transport) {}

  // Defined, strided, contiguous, no conjugate view, on a device that the backend supports.
  void tensor(std::string_view name, const at::Tensor& tensor) const;
  // tensor(), for send and recv: Gloo sends from the CPU only.
  void message(std::string_view name, const at::Tensor& tensor) const;
  // Of a dtype that can be reduced with this operation.
  void reducible(std::string_view name, const at::Tensor& tensor, ReduceOp op) const;
  // `whole` is size() blocks of `block`, with the same dtype and device.
  void blocks(std::string_view whole_name, const at::Tensor& whole, std::string_view block_name,
              const at::Tensor& block) const;
  // Same dtype, device and number of elements, a multiple of size().
  void exchange(const at::Tensor& output, const at::Tensor& input) const;
  void root(int root) const;
  // A rank other than this one.
  void peer(std::string_view name, int peer) const;

  [[noreturn]] void fail(std::string_view sentence) const;

 private:
  void same_type(std::string_view first_name, const at::Tensor& first, std::string_view second_name,
                 const at::Tensor& second) const;

  std::string_view operation_;
  int rank_;
  int size_;
  const Transport& transport_;
};

// A flat view of a contiguous tensor in a dtype that every backend can move: the tensor's own dtype;
// the real and imaginary parts of complex numbers; bytes if c10d's backends do not support it (bool,
// int16).
at::Tensor wire_view(const at::Tensor& tensor);

}  // namespace lockstep::comm
