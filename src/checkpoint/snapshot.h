#pragma once

#include <ATen/core/Tensor.h>

#include <lockstep/json.h>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

// A named tensor, or a run of its elements: what one rank holds of it. A generator's
// state and other small bytes are uint8 tensors.
struct TensorPiece {
  // The whole of `tensor`, which may lie anywhere, with any strides.
  static TensorPiece whole(std::string name, const at::Tensor& tensor);
  // Elements [first_element, first_element + data.numel()), in row-major order, of a
  // tensor of this shape.
  static TensorPiece part(std::string name, const at::Tensor& data, std::vector<int64_t> shape,
                          int64_t first_element);

  bool is_whole() const;

  std::string name;
  at::Tensor data;             // shares memory with the caller's; not changed
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t first_element = 0;
  // Where it is set it gives the content, in host memory, and `data` tells shape and dtype alone:
  // so a state in a file needs no memory for all of it. Called by several threads.
  std::function<at::Tensor()> read = nullptr;

  at::Tensor content() const { return read ? read() : data; }
};

// Waits for what the GPU still does for these tensors, on the current streams.
void wait_for_devices(const std::vector<TensorPiece>& pieces);

// All that one save holds. Two names that share memory are saved under each name, so
// that a file opens in Python with every name in it.
struct Snapshot {
  int64_t step = 0;
  int64_t epoch = 0;
  int world_size = 1;
  // The number by which the best checkpoints are kept, where there is one.
  std::optional<double> metric;
  // The trainer takes it for the best of those that it has saved: its criterion counts, not the
  // metric.
  bool best = false;
  // The trainer's own: configuration, scheduler, scaler, sampler position, callbacks.
  Json metadata = Json::object();
  std::vector<TensorPiece> pieces = {};
};

}  // namespace lockstep::checkpoint
