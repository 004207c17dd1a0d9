#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>

namespace lockstep::grad {

// Per-channel statistics of the batches of all ranks, in double.
struct BatchStatistics {
  at::Tensor mean;      // [channels]
  at::Tensor variance;  // [channels], divided by count
  at::Tensor count;     // scalar: values per channel, over all ranks
};

// One all-gather; blocks. Each rank's mean and squared deviations are combined by
// counts (Chan, Golub, LeVeque 1979), which does not cancel as sums of squares do.
BatchStatistics gather_statistics(const at::Tensor& input, const Communicator& communicator);

// BatchNorm in training mode with the statistics of all ranks, differentiable in
// input, weight and bias (the latter two may be undefined). `statistics` receives
// what it used.
at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                           double eps, const Communicator& communicator, BatchStatistics& statistics);

}  // namespace lockstep::grad
