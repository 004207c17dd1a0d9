#include "train/epoch_loss.h"

#include <lockstep/communicator.h>
#include <torch/torch.h>

namespace lockstep::train {
namespace {

double mean_of(const at::Tensor& sum_and_count) {
  const at::Tensor host = sum_and_count.cpu();
  const double* values = host.const_data_ptr<double>();
  return values[0] / values[1];
}

}  // namespace

EpochLoss::EpochLoss(c10::Device device)
    : sum_and_count_(torch::zeros({2}, torch::TensorOptions().dtype(torch::kFloat64).device(device))) {}

void EpochLoss::add(const at::Tensor& batch_loss, int64_t num_samples) {
  sum_and_count_[0].add_(batch_loss, static_cast<double>(num_samples));
  sum_and_count_[1].add_(static_cast<double>(num_samples));
}

double EpochLoss::own_mean() const { return mean_of(sum_and_count_); }

double EpochLoss::mean_over(const Communicator& communicator) const {
  const at::Tensor total = sum_and_count_.clone();
  communicator.all_reduce(total, ReduceOp::kSum).wait();
  return mean_of(total);
}

}  // namespace lockstep::train
