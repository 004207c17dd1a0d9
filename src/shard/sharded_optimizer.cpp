#include "shard/sharded_optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/optimizer_state.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <unordered_map>

namespace lockstep::shard {

namespace {

using torch::optim::Optimizer;

// Each of their elements depends on its own gradients alone.
constexpr std::array<std::string_view, 7> kElementwise = {"SGD",     "Adam",     "AdamW", "Adagrad",
                                                          "RMSprop", "Adadelta", "Lion"};
// These look at whole parameters, or at all of them together.
constexpr std::array<std::string_view, 3> kWhole = {"LBFGS", "AdamLbfgs", "Lamb"};

template <size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Adagrad alone makes its state before it has seen a gradient.
void make_adagrad_state(Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const torch::optim::AdagradOptions&>(group.options());
    for (const at::Tensor& master : group.params()) {
      auto state = std::make_unique<torch::optim::AdagradParamState>();
      state->step(0);
      state->sum(torch::full_like(master, options.initial_accumulator_value()));
      optimizer.state()[master.unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

bool has_stepped(const Optimizer& optimizer) {
  if (optimizer_class(optimizer) != "Adagrad") return !optimizer.state().empty();
  return std::any_of(optimizer.state().begin(), optimizer.state().end(), [](const auto& item) {
    return static_cast<const torch::optim::AdagradParamState&>(*item.second).step() > 0;
  });
}

}  // namespace

std::vector<int> groups_of(const Optimizer& optimizer, const std::vector<NamedParameter>& parameters) {
  std::unordered_map<const void*, int> group_of;
  for (size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    for (const at::Tensor& tensor : optimizer.param_groups()[i].params()) {
      group_of.emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(i));
    }
  }
  std::vector<int> groups;
  for (const NamedParameter& parameter : parameters) {
    const auto found = group_of.find(parameter.tensor.unsafeGetTensorImpl());
    if (found == group_of.end()) {
      throw ConfigError("shard", fmt::format("a parameter that takes a gradient is not in the optimizer; "
                                             "freeze it (requires_grad_(false)) or add it: {}",
                                             parameter.name));
    }
    groups.push_back(found->second);
    group_of.erase(found);
  }
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      if (group_of.count(tensor.unsafeGetTensorImpl()) == 0 || !tensor.requires_grad()) continue;
      throw ConfigError("shard", fmt::format("the optimizer has a parameter that the model does not have, of "
                                             "shape [{}]: one optimizer belongs to one sharded model",
                                             fmt::join(tensor.sizes(), ", ")));
    }
  }
  return groups;
}

void require_elementwise(const Optimizer& optimizer, bool allow_untested) {
  const std::string name = optimizer_class(optimizer);
  if (contains(kElementwise, name)) return;
  if (contains(kWhole, name)) {
    throw ConfigError("shard",
                      fmt::format("{} looks at whole parameters together, so that ranks cannot each "
                                  "update a part of them: use {}, or set the stage (zero_stage) to 0",
                                  name, fmt::join(kElementwise, ", ")));
  }
  if (allow_untested) return;
  throw ConfigError("shard", fmt::format("it is not known whether {} treats each element by itself, as "
                                         "sharding needs it to: set allow_untested_optimizer if it does",
                                         name));
}

void require_fresh(const Optimizer& optimizer) {
  if (!has_stepped(optimizer)) return;
  throw ConfigError("shard",
                    "the optimizer has a state already: make it anew, and load the state of a checkpoint "
                    "after sharding");
}

void hand_over(Optimizer& optimizer, const std::vector<ShardedBucket>& buckets,
               const std::vector<int>& group_of) {
  for (auto& group : optimizer.param_groups()) group.params().clear();
  for (size_t i = 0; i < buckets.size(); ++i) {
    optimizer.param_groups()[static_cast<size_t>(group_of[i])].params().push_back(buckets[i].master());
  }
  optimizer.state().clear();
  if (optimizer_class(optimizer) == "Adagrad") make_adagrad_state(optimizer);
}

// All others have no gradient meanwhile, and optimizers pass over those: so the conversion
// needs memory for one bucket only, and its parameters can be on their way to the other
// ranks while the next one is updated.
void step_one(Optimizer& optimizer, const at::Tensor& master, const at::Tensor& gradient,
              const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  const at::Tensor target = master;
  target.mutable_grad() = gradient.to(master.scalar_type());
  if (factor.defined()) target.mutable_grad().mul_(factor.to(master.device()));
  optimizer.step();
  target.mutable_grad().reset();
}

int64_t state_bytes(const Optimizer& optimizer) {
  NamedTensors masters;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& master : group.params())
      masters.emplace_back(std::to_string(masters.size()), master);
  }
  int64_t bytes = 0;
  for (const auto& [name, tensor] : optimizer_state(optimizer, masters).tensors) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

namespace {

constexpr int64_t kProbeElements = 64;

// Takes an optimizer's parameters and state away, and gives them back at its end.
class SetAside {
 public:
  explicit SetAside(Optimizer& optimizer) : optimizer_(optimizer), state_(std::move(optimizer.state())) {
    optimizer_.state().clear();
    for (auto& group : optimizer_.param_groups()) {
      parameters_.push_back(std::move(group.params()));
      group.params().clear();
    }
  }
  ~SetAside() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      optimizer_.param_groups()[i].params() = std::move(parameters_[i]);
    }
    optimizer_.state() = std::move(state_);
  }
  SetAside(const SetAside&) = delete;
  SetAside& operator=(const SetAside&) = delete;

 private:
  Optimizer& optimizer_;
  std::remove_reference_t<decltype(std::declval<Optimizer&>().state())> state_;
  std::vector<std::vector<at::Tensor>> parameters_;
};

}  // namespace

int64_t StateBytes::measure(int group, c10::ScalarType dtype) const {
  const SetAside aside(optimizer_);
  const at::NoGradGuard no_grad;
  at::Tensor probe = at::zeros({kProbeElements}, dtype);
  optimizer_.param_groups()[static_cast<size_t>(group)].params().push_back(probe);
  if (optimizer_class(optimizer_) == "Adagrad") make_adagrad_state(optimizer_);
  step_one(optimizer_, probe, at::zeros_like(probe), {});
  return state_bytes(optimizer_);
}

int64_t StateBytes::operator()(int group, c10::ScalarType dtype, int64_t elements) const {
  if (!contains(kElementwise, optimizer_class(optimizer_))) return 0;
  const auto [found, is_new] = measured_.try_emplace({group, dtype}, 0);
  if (is_new) found->second = measure(group, dtype);
  return elements * found->second / kProbeElements;
}

}  // namespace lockstep::shard
