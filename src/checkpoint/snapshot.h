#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/json.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/metric_kind.h"

namespace lockstep::checkpoint {

// A named tensor, or consecutive elements of one: what one rank has of it. The state of a generator
// and other bytes are uint8 tensors.
struct TensorPiece {
  // All of `tensor`, which may be on any device and have any strides.
  static TensorPiece whole(std::string name, const at::Tensor& tensor);
  // Elements [first_element, first_element + data.numel()), in row-major order, of a
  // tensor of this shape.
  static TensorPiece part(std::string name, const at::Tensor& data, std::vector<int64_t> shape,
                          int64_t first_element);

  bool is_whole() const;

  std::string name;
  at::Tensor data;             // shares memory with the caller's tensor; not changed
  std::vector<int64_t> shape;  // of the full tensor
  int64_t first_element = 0;
  // If set: returns the content in host memory, and `data` has only shape and dtype. A state in a file
  // is then not in memory as a whole. Several threads may call it.
  std::function<at::Tensor()> read = nullptr;

  at::Tensor content() const { return read ? read() : data; }
};

// Blocks until the work of the current streams on these tensors is done.
void wait_for_devices(const std::vector<TensorPiece>& pieces);

// The content of one save. A tensor under two names is saved under both, so that Python finds every
// name in the file.
struct Snapshot {
  int64_t step = 0;
  int64_t epoch = 0;
  int world_size = 1;
  // Ranks the checkpoints to keep, if there is one.
  std::optional<double> metric;
  MetricKind metric_kind = {};
  // The best of the trainer's saves so far, by the trainer's criterion, not by the metric.
  bool best = false;
  // State of the trainer: configuration, scheduler, scaler, sampler position, callbacks.
  Json metadata = Json::object();
  std::vector<TensorPiece> pieces = {};
};

// Host memory for copies of snapshots, reused for the next one. Pinned for tensors of a GPU, so that
// the copies overlap.
class HostCopy {
 public:
  // The same snapshot with contiguous tensors in the memory of this object. Blocks until they are
  // copied. Valid until the next call.
  Snapshot copy(const Snapshot& snapshot);

  int64_t bytes() const;

 private:
  at::Tensor& buffer_for(size_t index, const at::Tensor& data);

  std::vector<at::Tensor> buffers_;
};

}  // namespace lockstep::checkpoint
