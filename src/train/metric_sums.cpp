#include "train/metric_sums.h"

#include <fmt/format.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <bit>

namespace lockstep::train {
namespace {

constexpr std::string_view kLoss = "loss";
constexpr const char* kCounts = "counts";
constexpr const char* kShape = "shape";

bool is_appended(const std::vector<int64_t>& shape) { return !shape.empty() && shape.front() < 0; }

void add_numbers(std::vector<double>& sums, const at::Tensor& numbers, bool appended) {
  const at::Tensor on_host = numbers.cpu().contiguous();
  const double* const first = on_host.const_data_ptr<double>();
  if (appended) {
    sums.insert(sums.end(), first, first + on_host.numel());
  } else {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += first[i];
  }
}

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
  for (const auto& [name, counts] : result.counts) add(name, counts);
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

void MetricSums::add(const std::string& name, const MetricCounts& counts) {
  Counts& own = counts_[name];
  std::vector<int64_t> shape = counts.counts.sizes().vec();
  if (counts.appended && !shape.empty()) shape.front() = -1;
  if (own.shape.empty()) {
    own.shape = shape;
    if (!counts.appended) own.sums.resize(static_cast<size_t>(counts.counts.numel()));
  }
  if (own.shape != shape) {
    throw ConfigError("train", fmt::format("the counts of the metric '{}' must have the same shape in all "
                                           "batches",
                                           name));
  }
  own.value = counts.value;
  const torch::NoGradGuard no_grad;
  const at::Tensor numbers = counts.counts.detach().to(torch::kFloat64);
  if (numbers.is_cpu() || !keep_on_device_) {
    add_numbers(own.sums, numbers, counts.appended);
  } else if (counts.appended || own.on_device.empty()) {
    own.on_device.push_back(numbers.clone());
  } else {
    own.on_device.front().add_(numbers);
  }
}

MetricSums::Totals MetricSums::own_totals() const {
  Totals totals;
  for (const auto& [name, sum] : sums_) {
    const double on_device = sum.on_device.defined() ? scalar_value(sum.on_device) : 0;
    totals.means[name] = {sum.value + on_device, sum.count, {}};
  }
  for (const auto& [name, counts] : counts_) {
    Counts& total = totals.counts[name] = counts;
    for (const at::Tensor& numbers : counts.on_device) {
      add_numbers(total.sums, numbers, is_appended(counts.shape));
    }
    total.on_device.clear();
  }
  return totals;
}

Json MetricSums::to_json(const Totals& totals) {
  Json result = Json::object();
  for (const auto& [name, sum] : totals.means) result[name] = {to_bits(sum.value), to_bits(sum.count)};
  for (const auto& [name, counts] : totals.counts) {
    Json bits = Json::array();
    for (const double sum : counts.sums) bits.push_back(to_bits(sum));
    result[name] = {{kCounts, bits}, {kShape, counts.shape}};
  }
  return result;
}

void MetricSums::add_json(Totals& totals, const Json& other) {
  for (const auto& [name, sum] : other.items()) {
    if (sum.is_array()) {
      totals.means[name].value += from_bits(sum.at(0));
      totals.means[name].count += from_bits(sum.at(1));
      continue;
    }
    const Json& bits = sum.at(kCounts);
    Counts& total = totals.counts[name];
    const auto shape = sum.at(kShape).get<std::vector<int64_t>>();
    if (total.shape.empty()) {
      total.shape = shape;
      if (!is_appended(shape)) total.sums.resize(bits.size());
    }
    if (is_appended(shape) && shape == total.shape) {
      for (const Json& number : bits) total.sums.push_back(from_bits(number));
      continue;
    }
    if (total.sums.size() != bits.size()) {
      throw ConfigError("train", fmt::format("the counts of the metric '{}' must have the same shape on all "
                                             "ranks",
                                             name));
    }
    for (size_t i = 0; i < bits.size(); ++i) total.sums[i] += from_bits(bits.at(i));
  }
}

MetricSums::Totals MetricSums::gather(const Communicator& communicator) const {
  Totals totals;
  // Added in rank order, so that every rank gets the same bits.
  for (const std::string& part : communicator.all_gather_bytes(to_json(own_totals()).dump())) {
    add_json(totals, Json::parse(part));
  }
  for (auto& [name, counts] : totals.counts) {
    if (const auto own = counts_.find(name); own != counts_.end()) counts.value = own->second.value;
  }
  return totals;
}

MetricSums::Means MetricSums::means_of(const Totals& totals) {
  Means means;
  for (const auto& [name, sum] : totals.means) {
    means.values[name] = sum.value / sum.count;
    if (name == kLoss) means.samples = sum.count;
  }
  for (const auto& [name, counts] : totals.counts) {
    if (!counts.value) continue;
    const at::Tensor sums = at::tensor(counts.sums, at::kDouble).reshape(counts.shape);
    means.values[name] = counts.value(sums);
  }
  return means;
}

MetricSums::Means MetricSums::own() const { return means_of(own_totals()); }

MetricSums::Means MetricSums::over(const Communicator& communicator) const {
  const Totals totals = gather(communicator);
  Means means = means_of(totals);
  if (totals.counts.empty()) return means;
  // A rank without samples has no function for the value: all ranks take that of the first one that has it.
  Json own = Json::object();
  for (const auto& [name, counts] : totals.counts) {
    if (counts.value) own[name] = to_bits(means.values.at(name));
  }
  const std::vector<std::string> parts = communicator.all_gather_bytes(own.dump());
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const Json values = Json::parse(*part);
    for (const auto& [name, bits] : values.items()) means.values[name] = from_bits(bits);
  }
  return means;
}

Json MetricSums::totals(const Communicator& communicator) const { return to_json(gather(communicator)); }

void MetricSums::load_totals(const Json& totals) {
  clear();
  Totals loaded;
  add_json(loaded, totals);
  for (auto& [name, sum] : loaded.means) sums_[name] = sum;
  for (auto& [name, counts] : loaded.counts) counts_[name] = counts;
}

}  // namespace lockstep::train
