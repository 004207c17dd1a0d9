#include "train/gradient_statistics.h"

#include <lockstep/communicator.h>
#include <lockstep/sharded.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <limits>
#include <map>

namespace lockstep::train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kColumns = 4;  // elements, sum, greatest, least

// Of a complex gradient: its real and imaginary parts.
at::Tensor exact(const at::Tensor& gradient) {
  const at::Tensor values = gradient.detach().resolve_conj();
  return (values.is_complex() ? at::view_as_real(values) : values).to(at::kCPU, at::kDouble).flatten();
}

// One row for each parameter, from this rank's part of its gradient.
at::Tensor row_of(const at::Tensor& gradient) {
  const at::Tensor row = at::tensor({0.0, 0.0, -kInfinity, kInfinity}, at::kDouble);
  if (!gradient.defined() || gradient.numel() == 0) return row;
  const at::Tensor values = exact(gradient);
  row[0] = static_cast<double>(values.numel());
  row[1] = values.sum();
  row[2] = values.max();
  row[3] = values.min();
  return row;
}

// Combines the rows of all ranks. Does not use the backend's maximum, because not every backend keeps a
// NaN.
at::Tensor joined(const at::Tensor& rows, const Communicator& communicator, c10::Device device) {
  const at::Tensor own = rows.to(device);
  const at::Tensor all = at::empty({communicator.size() * rows.size(0), kColumns}, own.options());
  communicator.all_gather(all, own).wait();
  const at::Tensor by_rank = all.cpu().view({communicator.size(), rows.size(0), kColumns});
  const at::Tensor sums = by_rank.narrow(2, 0, 2).sum(0);
  return at::cat({sums, by_rank.narrow(2, 2, 1).amax(0), by_rank.narrow(2, 3, 1).amin(0)}, 1);
}

// The sum of squared differences from the mean.
double squares_around(const at::Tensor& gradient, double mean) {
  if (!gradient.defined() || gradient.numel() == 0) return 0;
  return (exact(gradient) - mean).square().sum().item<double>();
}

at::Tensor all_values(const at::Tensor& gradient, const Communicator& communicator, c10::Device device) {
  const at::Tensor own = gradient.defined() ? exact(gradient) : at::empty({0}, at::kDouble);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : communicator.all_gather_uneven(own.to(device))) parts.push_back(part.cpu());
  return at::cat(parts);  // ranks own consecutive elements of a parameter, in rank order
}

}  // namespace

std::vector<GradientStatistics> gradient_statistics(const torch::nn::Module& module, double factor,
                                                    bool with_values) {
  std::vector<GradientStatistics> result;
  for (const auto& [name, parameter] : named_parameters(module)) {
    if (!parameter.grad().defined() || parameter.grad().numel() == 0) continue;
    const at::Tensor values = exact(parameter.grad()) * factor;
    result.push_back({.name = name,
                      .mean = values.mean().item<double>(),
                      .deviation = values.std(/*unbiased=*/false).item<double>(),
                      .greatest = values.max().item<double>(),
                      .least = values.min().item<double>(),
                      .values = with_values ? values : at::Tensor()});
  }
  return result;
}

std::vector<GradientStatistics> gradient_statistics(const torch::nn::Module& module,
                                                    const ShardedModel& model, c10::Device device,
                                                    double factor, bool with_values) {
  const torch::NoGradGuard no_grad;
  // At stage 0 every rank has the complete gradients.
  const Communicator communicator = model.options().zero.stage > 0 ? model.communicator() : Communicator();
  const bool is_main = model.communicator().rank() == 0;
  if (communicator.size() == 1 && !is_main) return {};
  std::map<std::string, at::Tensor> own;
  for (const ShardedModel::Part& part : model.gradient_parts()) own[part.name] = part.data;
  std::vector<std::string> names;
  std::vector<at::Tensor> rows;
  for (const auto& [name, parameter] : named_parameters(module)) {
    names.push_back(name);
    rows.push_back(row_of(own[name]));
  }
  if (names.empty()) return {};
  const at::Tensor total = joined(at::stack(rows), communicator, device);
  std::vector<GradientStatistics> result;
  std::vector<double> own_variances;  // this rank's share of them
  for (size_t i = 0; i < names.size(); ++i) {
    const at::Tensor row = total[static_cast<int64_t>(i)];
    const double count = row[0].item<double>();
    if (count == 0) continue;  // no rank has this gradient
    const double mean = row[1].item<double>() / count;
    own_variances.push_back(squares_around(own[names[i]], mean) / count);
    result.push_back({.name = names[i],
                      .mean = mean * factor,
                      .deviation = 0,
                      .greatest = row[2].item<double>() * factor,
                      .least = row[3].item<double>() * factor,
                      .values = {}});
  }
  const at::Tensor variances = at::tensor(own_variances, at::kDouble).to(device);
  communicator.all_reduce(variances).wait();
  const at::Tensor deviations = variances.cpu().sqrt() * factor;
  for (size_t i = 0; i < result.size(); ++i) {
    result[i].deviation = deviations[static_cast<int64_t>(i)].item<double>();
    if (with_values) result[i].values = all_values(own[result[i].name], communicator, device) * factor;
  }
  if (!is_main) return {};
  return result;
}

}  // namespace lockstep::train
