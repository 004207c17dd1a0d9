#include <fmt/format.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <lockstep/json.h>
#include <optional>

#include "base/log.h"
#include "comm/communicator_internal.h"
#include "optim/argument.h"
#include "optim/deepspeed_scale.h"

namespace lockstep {

struct GradScaler::Impl {
  GradScalerOptions options;
  std::optional<optim::DeepSpeedLossScale> deepspeed;  // decides the scale, if options ask for it
  // float32 and int32 as in PyTorch, on the device of the losses.
  at::Tensor scale;
  at::Tensor tracker;
  at::Tensor found_inf;  // of the last unscale(); undefined before it
  bool skip = false;
  bool deferred = false;  // the host does not know the result of the last unscale
  // Counts of deferred updates that `skipped` and `consecutive` do not contain yet: skipped steps in all,
  // and in a row. Undefined: none.
  at::Tensor counts;
  bool warns = true;  // only rank 0 does
  bool warned = false;
  int64_t skipped = 0;
  int64_t consecutive = 0;

  void set(double scale_value, int64_t tracker_value) {
    scale = at::full({}, scale_value, at::kFloat);
    tracker = at::full({}, tracker_value, at::kInt);
  }

  void move_to(const at::Device& device) {
    scale = scale.to(device);
    tracker = tracker.to(device);
  }

  void count(bool skip_step) {
    consecutive = skip_step ? consecutive + 1 : 0;
    if (skip_step) {
      ++skipped;
      warn_of_collapse();
    } else {
      warned = false;
    }
  }

  void move_scale(const at::Tensor& found) {
    if (!options.dynamic) return;
    if (deepspeed) {
      deepspeed->update(skip);
      scale.fill_(deepspeed->scale());
    } else {
      at::_amp_update_scale_(scale, tracker, found, options.growth_factor, options.backoff_factor,
                             options.growth_interval);
    }
  }

  void count_on_device(const at::Tensor& found) {
    if (!counts.defined()) {
      counts = at::tensor({0.0, static_cast<double>(consecutive)}, at::kDouble).to(found.device());
    }
    counts.add_(found);
    counts.select(0, 1).mul_(found.squeeze(0));
  }

  // Copies the counts to the host.
  void fetch_counts() {
    if (!counts.defined()) return;
    const at::Tensor values = counts.cpu();
    skipped += static_cast<int64_t>(values[0].item<double>());
    consecutive = static_cast<int64_t>(values[1].item<double>());
    counts.select(0, 0).zero_();  // in place: recorded steps add to this tensor
    if (consecutive > 0) {
      warn_of_collapse();
    } else {
      warned = false;
    }
  }

  void warn_of_collapse() {
    if (warned || !warns) return;
    const auto value = scale.item<double>();
    if (value >= options.collapse_scale) return;
    warned = true;
    base::log_warning("optim",
                      "the loss scale fell to {} after {} skipped steps in a row: the gradients are not "
                      "finite at any scale; look for NaN in the data and the loss, lower the learning "
                      "rate, or use bf16",
                      value, consecutive);
  }
};

namespace {

void check_options(const GradScalerOptions& options) {
  constexpr auto kWhat = "the gradient scaler";
  optim::require_positive(kWhat, "init_scale", options.init_scale);
  optim::require(std::isfinite(options.growth_factor) && options.growth_factor > 1, kWhat, "growth_factor",
                 "above 1", options.growth_factor);
  optim::require(options.backoff_factor > 0 && options.backoff_factor < 1, kWhat, "backoff_factor",
                 "above 0 and below 1", options.backoff_factor);
  optim::require_at_least(1, kWhat, "growth_interval", options.growth_interval);
  optim::require_not_negative(kWhat, "collapse_scale", options.collapse_scale);
  optim::require_at_least(1, kWhat, "max_consecutive_skips", options.max_consecutive_skips);
}

// The tensors to unscale, grouped by device and dtype as the kernel needs them.
std::vector<std::vector<at::Tensor>> groups_of(const std::vector<at::Tensor>& gradients) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined() || gradient.numel() == 0) continue;
    if (gradient.is_complex()) {
      throw ConfigError("optim",
                        "the gradient scaler is for real gradients, and one is complex: train without it");
    }
    if (gradient.scalar_type() == at::kHalf) {
      throw ConfigError("optim",
                        "gradients are float16 and would overflow when they are unscaled: keep the "
                        "parameters in float32 and compute in float16 by autocast");
    }
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const std::vector<at::Tensor>& other) {
      return other[0].device() == values.device() && other[0].scalar_type() == values.scalar_type();
    });
    if (group == groups.end()) group = groups.insert(groups.end(), std::vector<at::Tensor>());
    group->push_back(values);
  }
  return groups;
}

// NCCL cannot reduce host memory, where offloaded gradients are.
void share_largest(const at::Tensor& value, const Communicator& communicator) {
  const at::Tensor shared =
      value.is_cpu() ? value.to(comm::device_of(communicator)) : value;  // no copy if it is there already
  communicator.all_reduce(shared, ReduceOp::kMax).wait();
  if (!shared.is_same(value)) value.copy_(shared);
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : impl_(std::make_unique<Impl>()) {
  check_options(options);
  impl_->options = options;
  if (options.deepspeed) impl_->deepspeed.emplace(*options.deepspeed);
  impl_->set(options.deepspeed ? impl_->deepspeed->scale() : options.init_scale, 0);
}

GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  impl_->move_to(loss.device());
  return loss * impl_->scale;
}

bool GradScaler::unscale(const std::vector<at::Tensor>& gradients) {
  return unscale(gradients, Communicator());
}

bool GradScaler::unscale(const std::vector<at::Tensor>& gradients, const Communicator& communicator) {
  impl_->skip = unscale_on_device(gradients, communicator).item<float>() != 0;
  impl_->deferred = false;
  return !impl_->skip;
}

at::Tensor GradScaler::unscale_on_device(const std::vector<at::Tensor>& gradients,
                                         const Communicator& communicator) {
  if (impl_->found_inf.defined()) {
    throw ConfigError("optim", "unscale() was called twice: call update() once after each step");
  }
  const torch::NoGradGuard no_grad;
  auto groups = groups_of(gradients);
  if (!groups.empty()) impl_->move_to(groups[0][0].device());
  // In float64: a float32 reciprocal can be imprecise.
  const at::Tensor inverse = impl_->scale.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor found = at::zeros({1}, impl_->scale.options());
  for (auto& group : groups) {
    at::Tensor own = at::zeros({1}, found.options().device(group[0].device()));
    at::_amp_foreach_non_finite_check_and_unscale_(group, own, inverse.to(own.device()));
    found = at::maximum(found, own.to(found.device()));
  }
  share_largest(found, communicator);
  impl_->found_inf = found;
  impl_->warns = communicator.rank() == 0;
  impl_->deferred = true;
  return found;
}

void GradScaler::note_overflow(bool overflow, const Communicator& communicator) {
  if (impl_->found_inf.defined()) {
    throw ConfigError("optim", "an overflow was noted twice: call update() once after each step");
  }
  impl_->found_inf = at::full({1}, overflow ? 1.0 : 0.0, impl_->scale.options());
  impl_->warns = communicator.rank() == 0;
  impl_->skip = overflow;
  impl_->deferred = false;
}

void GradScaler::update() {
  if (!impl_->found_inf.defined()) {
    throw ConfigError("optim", "update() was called without unscale() before it: the step is not known");
  }
  if (impl_->deepspeed && impl_->deferred) {
    impl_->skip = impl_->found_inf.item<float>() != 0;
    impl_->deferred = false;
  }
  const at::Tensor found_inf = std::exchange(impl_->found_inf, at::Tensor());
  impl_->move_scale(found_inf);
  if (impl_->deferred) {
    impl_->count_on_device(found_inf);
  } else {
    impl_->fetch_counts();
    impl_->counts = at::Tensor();
    impl_->count(impl_->skip);
  }
}

void GradScaler::check_progress() const {
  if (consecutive_skips() < impl_->options.max_consecutive_skips) return;
  throw ConfigError(
      "optim", fmt::format("the gradients were not finite in the last {} steps, down to a loss scale of {}: "
                           "look for NaN in the data and the loss, lower the learning rate, or use bf16",
                           consecutive_skips(), current_scale()));
}

double GradScaler::current_scale() const { return impl_->scale.item<double>(); }
int64_t GradScaler::growth_tracker() const {
  return impl_->deepspeed ? impl_->deepspeed->finite_steps() : impl_->tracker.item<int64_t>();
}
int64_t GradScaler::skipped_steps() const {
  impl_->fetch_counts();
  return impl_->skipped;
}
int64_t GradScaler::consecutive_skips() const {
  impl_->fetch_counts();
  return impl_->consecutive;
}
const GradScalerOptions& GradScaler::options() const { return impl_->options; }

Json GradScaler::state() const {
  Json state{{"scale", current_scale()},
             {"growth_factor", impl_->options.growth_factor},
             {"backoff_factor", impl_->options.backoff_factor},
             {"growth_interval", impl_->options.growth_interval},
             {"_growth_tracker", growth_tracker()},
             {"skipped_steps", skipped_steps()},
             {"consecutive_skips", consecutive_skips()}};
  if (impl_->deepspeed) state["deepspeed"] = impl_->deepspeed->state();
  return state;
}

void GradScaler::load_state(const Json& state) {
  GradScalerOptions options = impl_->options;
  double scale = 0;
  int64_t tracker = 0;
  int64_t skipped = 0;
  int64_t consecutive = 0;
  std::optional<optim::DeepSpeedLossScale> deepspeed = impl_->deepspeed;
  optim::read_saved("the gradient scaler", [&] {
    state.at("growth_factor").get_to(options.growth_factor);
    state.at("backoff_factor").get_to(options.backoff_factor);
    state.at("growth_interval").get_to(options.growth_interval);
    state.at("scale").get_to(scale);
    state.at("_growth_tracker").get_to(tracker);
    // Python's state has no counts.
    skipped = state.value("skipped_steps", skipped);
    consecutive = state.value("consecutive_skips", consecutive);
    if (deepspeed) deepspeed->load_state(state.at("deepspeed"));
  });
  check_options(options);
  optim::require_positive("the gradient scaler's state", "scale", scale);
  impl_->options = options;
  impl_->deepspeed = deepspeed;
  impl_->set(scale, tracker);
  impl_->found_inf = at::Tensor();
  impl_->counts = at::Tensor();
  impl_->skipped = skipped;
  impl_->consecutive = consecutive;
}

}  // namespace lockstep
