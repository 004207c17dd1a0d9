#include "train/metric_sums.h"

#include <lockstep/communicator.h>
#include <torch/torch.h>

#include <bit>

namespace lockstep::train {
namespace {

constexpr std::string_view kLoss = "loss";

// Sent as bytes, because JSON has no infinities and no NaN.
Json to_bits(double value) { return std::bit_cast<uint64_t>(value); }
double from_bits(const Json& bits) { return std::bit_cast<double>(bits.get<uint64_t>()); }

}  // namespace

double scalar_value(const at::Tensor& scalar) {
  // item() uses the dispatcher, which costs more than a layer of a small model.
  if (scalar.is_cpu() && scalar.scalar_type() == torch::kFloat32) return *scalar.const_data_ptr<float>();
  return scalar.item<double>();
}

void MetricSums::add(const LossResult& result, int64_t samples) {
  add(kLoss, result.loss, samples);
  for (const auto& [name, value] : result.metrics) add(name, value, samples);
}

void MetricSums::add(std::string_view name, const at::Tensor& value, int64_t samples) {
  auto found = sums_.find(name);
  if (found == sums_.end()) found = sums_.emplace(name, Sum{}).first;
  Sum& sum = found->second;
  const auto weight = static_cast<double>(samples);
  sum.count += weight;
  if (value.is_cpu() || !keep_on_device_) {
    sum.value += scalar_value(value) * weight;
    return;
  }
  const torch::NoGradGuard no_grad;
  if (!sum.on_device.defined()) sum.on_device = torch::zeros({}, value.options().dtype(torch::kFloat64));
  sum.on_device.add_(value.detach().reshape({}), weight);
}

MetricSums::Means MetricSums::own() const {
  Means means;
  for (const auto& [name, sum] : sums_) {
    const double on_device = sum.on_device.defined() ? scalar_value(sum.on_device) : 0;
    means.values[name] = (sum.value + on_device) / sum.count;
    if (name == kLoss) means.samples = sum.count;
  }
  return means;
}

std::map<std::string, MetricSums::Sum> MetricSums::gather(const Communicator& communicator) const {
  Json own = Json::object();
  for (const auto& [name, sum] : sums_) {
    const double on_device = sum.on_device.defined() ? scalar_value(sum.on_device) : 0;
    own[name] = {to_bits(sum.value + on_device), to_bits(sum.count)};
  }
  std::map<std::string, Sum> totals;
  // Added in rank order, so that every rank gets the same bits.
  for (const std::string& part : communicator.all_gather_bytes(own.dump())) {
    const Json other = Json::parse(part);
    for (const auto& [name, sum] : other.items()) {
      totals[name].value += from_bits(sum.at(0));
      totals[name].count += from_bits(sum.at(1));
    }
  }
  return totals;
}

MetricSums::Means MetricSums::over(const Communicator& communicator) const {
  Means means;
  for (const auto& [name, sum] : gather(communicator)) {
    means.values[name] = sum.value / sum.count;
    if (name == kLoss) means.samples = sum.count;
  }
  return means;
}

Json MetricSums::totals(const Communicator& communicator) const {
  Json result = Json::object();
  for (const auto& [name, sum] : gather(communicator)) {
    result[name] = {to_bits(sum.value), to_bits(sum.count)};
  }
  return result;
}

void MetricSums::load_totals(const Json& totals) {
  sums_.clear();
  for (const auto& [name, sum] : totals.items()) {
    sums_[name] = {from_bits(sum.at(0)), from_bits(sum.at(1)), {}};
  }
}

}  // namespace lockstep::train
