#include <fmt/ranges.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/log.h"
#include "optim/argument.h"

namespace lockstep {
namespace {

constexpr auto kCountName = "n_averaged";

void check_options(const WeightAverageOptions& options) {
  constexpr auto kWhat = "the weight average";
  optim::require_fraction(kWhat, "decay", options.decay);
  optim::require_at_least(1, kWhat, "update_every", options.update_every);
  optim::require_at_least(0, kWhat, "start_step", options.start_step);
}

// An average needs more than 16 bits: with a decay of 0.999 each change would be rounded away.
c10::ScalarType average_dtype(c10::ScalarType weight) {
  return weight == at::kHalf || weight == at::kBFloat16 ? at::kFloat : weight;
}

struct Pairs {
  std::vector<at::Tensor> averages;
  std::vector<at::Tensor> weights;
};

void move_towards(Pairs& pairs, double decay) {
  if (pairs.averages[0].is_floating_point() || pairs.averages[0].is_complex()) {
    at::_foreach_lerp_(pairs.averages, pairs.weights, 1 - decay);
    return;
  }
  for (size_t i = 0; i < pairs.averages.size(); ++i) {
    pairs.averages[i].copy_(pairs.averages[i] * decay + pairs.weights[i] * (1 - decay));
  }
}

}  // namespace

WeightAverage::WeightAverage(const torch::nn::Module& module, const WeightAverageOptions& options)
    : options_(options) {
  check_options(options);
  const auto add = [this](const NamedTensors& tensors, bool is_buffer) {
    for (const auto& [name, tensor] : tensors) {
      entries_.push_back({.name = name,
                          .weight = tensor,
                          .average = tensor.detach().to(average_dtype(tensor.scalar_type()),
                                                        /*non_blocking=*/false, /*copy=*/true),
                          .replaced = {},
                          .is_buffer = is_buffer});
    }
  };
  add(named_parameters(module), false);
  add(named_buffers(module), true);
}

double WeightAverage::current_decay() const {
  if (!options_.warm_up) return options_.decay;
  const auto n = static_cast<double>(updates_);
  return std::min(options_.decay, (1 + n) / (10 + n));
}

bool WeightAverage::update(int64_t step) {
  if (step < options_.start_step || step % options_.update_every != 0) return false;
  update();
  return true;
}

void WeightAverage::update() {
  base::check(!swapped_, "weights are averaged while the averages are in the model");
  const torch::NoGradGuard no_grad;
  // The kernel takes tensors of one device and dtype.
  std::map<std::pair<std::string, at::ScalarType>, Pairs> groups;
  for (Entry& entry : entries_) {
    if (updates_ == 0 || (entry.is_buffer && options_.buffers == WeightAverageOptions::Buffers::kCopy)) {
      entry.average.copy_(entry.weight);
      continue;
    }
    Pairs& pairs = groups[{entry.average.device().str(), entry.average.scalar_type()}];
    pairs.averages.push_back(entry.average);
    pairs.weights.push_back(entry.weight.to(entry.average.scalar_type()));
  }
  for (auto& [key, pairs] : groups) move_towards(pairs, current_decay());
  ++updates_;
}

// In place: the weights may be views of a flat buffer. An average of the weights' dtype is swapped with
// them. A wider average would lose bits, so the weights are kept separately.
void WeightAverage::exchange() {
  const torch::NoGradGuard no_grad;
  for (Entry& entry : entries_) {
    if (entry.average.scalar_type() != entry.weight.scalar_type()) {
      const at::Tensor weight = swapped_ ? at::Tensor() : entry.weight.detach().clone();
      entry.weight.copy_(swapped_ ? entry.replaced : entry.average);
      entry.replaced = weight;
      continue;
    }
    const at::Tensor weight = entry.weight.detach().clone();
    entry.weight.copy_(entry.average);
    entry.average.copy_(weight);
  }
  swapped_ = !swapped_;
}

WeightAverage::Swap::Swap(WeightAverage* average) : average_(average) {
  base::check(!average->swapped_, "the averages are in the model already");
  average->exchange();
}

WeightAverage::Swap::~Swap() {
  if (average_ == nullptr) return;
  try {
    average_->exchange();
  } catch (const std::exception& error) {
    base::log_error("optim", "the weights could not be put back after the averages: {}", error.what());
  }
}

NamedTensors WeightAverage::state() const {
  base::check(!swapped_, "the averages are read while they are in the model");
  NamedTensors state;
  for (const Entry& entry : entries_) state.emplace_back(entry.name, entry.average);
  state.emplace_back(kCountName, at::full({}, updates_, at::kLong));
  return state;
}

void WeightAverage::load_state(const NamedTensors& state) {
  base::check(!swapped_, "averages are loaded while they are in the model");
  std::map<std::string, at::Tensor> given(state.begin(), state.end());
  const auto take = [&given](const std::string& name, at::IntArrayRef sizes) {
    const auto found = given.find(name);
    if (found == given.end()) {
      throw ConfigError("optim", "the saved weight average lacks a tensor of the model: " + name);
    }
    at::Tensor tensor = found->second;
    if (tensor.sizes() != sizes) {
      throw ConfigError("optim",
                        fmt::format("the saved weight average has another shape than the model: {} is [{}] "
                                    "there and [{}] here",
                                    name, fmt::join(tensor.sizes(), ", "), fmt::join(sizes, ", ")));
    }
    given.erase(found);
    return tensor;
  };
  std::vector<at::Tensor> averages;
  for (const Entry& entry : entries_) averages.push_back(take(entry.name, entry.average.sizes()));
  const auto updates = take(kCountName, {}).item<int64_t>();
  if (!given.empty()) {
    throw ConfigError("optim",
                      "the saved weight average has a tensor that the model lacks: " + given.begin()->first);
  }
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < entries_.size(); ++i) entries_[i].average.copy_(averages[i]);
  updates_ = updates;
}

}  // namespace lockstep
