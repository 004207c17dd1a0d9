#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace lockstep {
class Communicator;
}

namespace lockstep::train {

// The mean loss over the samples of an epoch. Exact over ranks: sums and counts are
// reduced, not means of means. Stays on the device until it is read, so that adding
// a batch does not wait for the device.
class EpochLoss {
 public:
  explicit EpochLoss(c10::Device device);

  // batch_loss: mean over num_samples.
  void add(const at::Tensor& batch_loss, int64_t num_samples);
  // Of this rank alone. Waits for the device. NaN when nothing was added.
  double own_mean() const;
  // Over all ranks; every rank calls it. NaN when no rank added anything.
  double mean_over(const Communicator& communicator) const;

 private:
  at::Tensor sum_and_count_;  // two doubles
};

}  // namespace lockstep::train
