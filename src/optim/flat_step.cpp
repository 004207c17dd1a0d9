#include "optim/flat_step.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "optim/optimizer_kinds.h"
#include "optim/optimizers.h"

namespace lockstep::optim {

// The loop of an iterator over one byte for each block: LibTorch has compiled that loop.
void for_blocks(int64_t blocks, const std::function<void(int64_t begin, int64_t end)>& body) {
  if (blocks <= 1) {
    if (blocks == 1) body(0, 1);
    return;
  }
  const at::Tensor marks = at::empty({blocks}, at::kByte);
  const char* first = static_cast<const char*>(marks.const_data_ptr());
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .check_all_same_dtype(false)
                                    .resize_outputs(false)
                                    .add_owned_output(marks)
                                    .build();
  iterator.for_each(
      [&](char** data, const int64_t* /*strides*/, int64_t count) {
        const int64_t begin = data[0] - first;
        body(begin, begin + count);
      },
      /*grain_size=*/1);
}

namespace {

template <typename Options>
std::optional<FlatRule> adam_rule(const Options& options, int64_t step) {
  if (options.amsgrad()) return std::nullopt;
  AdamRule rule;
  rule.lr = options.lr();
  std::tie(rule.beta1, rule.beta2) = options.betas();
  rule.eps = options.eps();
  rule.weight_decay = options.weight_decay();
  rule.decoupled_decay = std::is_same_v<Options, torch::optim::AdamWOptions>;
  rule.step = step;
  return rule;
}

AdagradRule adagrad_rule(const torch::optim::AdagradOptions& options, int64_t step) {
  AdagradRule rule;
  rule.lr = options.lr();
  rule.lr_decay = options.lr_decay();
  rule.eps = options.eps();
  rule.weight_decay = options.weight_decay();
  rule.step = step;
  return rule;
}

LionRule lion_rule(const LionGroupOptions& options) {
  LionRule rule;
  rule.lr = options.lr();
  std::tie(rule.beta1, rule.beta2) = options.betas();
  rule.weight_decay = options.weight_decay();
  return rule;
}

SgdRule sgd_rule(const torch::optim::SGDOptions& options, int64_t step) {
  SgdRule rule;
  rule.lr = options.lr();
  rule.momentum = options.momentum();
  rule.dampening = options.dampening();
  rule.weight_decay = options.weight_decay();
  rule.nesterov = options.nesterov();
  rule.first_step = step == 1;
  return rule;
}

}  // namespace

std::optional<FlatRule> flat_rule(const torch::optim::OptimizerOptions& options, int64_t step) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): names of one function
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) return adam_rule(*adam, step);
  if (const auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) return adam_rule(*adamw, step);
  if (const auto* adagrad = dynamic_cast<const AdagradOptions*>(&options))
    return adagrad_rule(*adagrad, step);
  if (const auto* lion = dynamic_cast<const LionGroupOptions*>(&options)) return lion_rule(*lion);
  if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options)) return sgd_rule(*sgd, step);
  return std::nullopt;
}

namespace {

// Threads take whole blocks, so that two threads share at most the cache lines at the ends. A block takes
// about ten microseconds: less is not worth a thread.
constexpr int64_t kBlock = 16384;

FlatType flat_type(const at::Tensor& values) {
  switch (values.scalar_type()) {
    case at::kFloat: return FlatType::kFloat;
    case at::kBFloat16: return FlatType::kBFloat16;
    case at::kHalf: return FlatType::kHalf;
    default:
      throw ConfigError("optim", fmt::format("gradients and copies must be float32, bfloat16 or float16: {}",
                                             c10::toString(values.scalar_type())));
  }
}

}  // namespace

void step_flat(const FlatRule& rule, const FlatMemory& memory, const std::vector<FlatSegment>& tails) {
  FlatRule tail_rule = rule;
  if (auto* const adam = std::get_if<AdamRule>(&tail_rule)) adam->tail = true;
  const auto step = [&](const FlatRule& each, size_t first, size_t last) {
    if (first < last) step_range(each, memory.part(first, last - first));
  };
  const auto numel = static_cast<int64_t>(memory.numel);
  for_blocks((numel + kBlock - 1) / kBlock, [&](int64_t begin, int64_t end) {
    auto first = static_cast<size_t>(begin * kBlock);
    const auto last = static_cast<size_t>(std::min(end * kBlock, numel));
    auto tail = std::partition_point(tails.begin(), tails.end(),
                                     [&](const FlatSegment& segment) { return segment.end <= first; });
    for (; tail != tails.end() && tail->begin < last; ++tail) {
      const size_t tail_begin = std::max(first, tail->begin);
      const size_t tail_end = std::min(last, tail->end);
      step(rule, first, tail_begin);
      step(tail_rule, tail_begin, tail_end);
      first = tail_end;
    }
    step(rule, first, last);
  });
}

void StepsTails::set_tails(const at::Tensor& parameter, std::vector<FlatSegment> tails) {
  tails_[parameter.unsafeGetTensorImpl()] = std::move(tails);
}

std::vector<FlatSegment> StepsTails::tails_of(const at::Tensor& parameter) const {
  const auto found = tails_.find(parameter.unsafeGetTensorImpl());
  if (found != tails_.end()) return found->second;
  const int64_t numel = parameter.numel();
  const FlatSegment tail{static_cast<size_t>(before_tail(numel)), static_cast<size_t>(numel)};
  return tail.begin < tail.end ? std::vector{tail} : std::vector<FlatSegment>();
}

bool is_flat(const at::Tensor& parameter) {
  return parameter.is_cpu() && parameter.scalar_type() == at::kFloat && !parameter.is_sparse() &&
         parameter.is_non_overlapping_and_dense();
}

void require_flat(std::string_view what, const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (is_flat(parameters[i])) continue;
    throw ConfigError(
        "optim",
        fmt::format("{} steps float32 parameters on the CPU that lie in memory without gaps; parameter {} is "
                    "{} on {}, sizes [{}], strides [{}]",
                    what, i, c10::toString(parameters[i].scalar_type()), parameters[i].device().str(),
                    fmt::join(parameters[i].sizes(), ", "), fmt::join(parameters[i].strides(), ", ")));
  }
}

void step_tensor(const FlatRule& rule, const at::Tensor& parameter, const at::Tensor& gradient,
                 const at::Tensor& state, const at::Tensor& second_state, const FlatExtras& extras,
                 const std::vector<FlatSegment>& tails) {
  if (gradient.is_sparse()) {
    throw ConfigError("optim", "a gradient is sparse: this optimizer takes dense gradients only");
  }
  at::Tensor values = gradient;
  if (values.strides() != parameter.strides()) {
    values = at::empty_like(parameter, gradient.scalar_type()).copy_(gradient);
  }
  FlatMemory memory;
  memory.numel = static_cast<size_t>(parameter.numel());
  memory.parameters = parameter.mutable_data_ptr<float>();
  memory.gradient_type = flat_type(values);
  memory.gradients = values.const_data_ptr();
  if (state.defined()) memory.state = state.mutable_data_ptr<float>();
  if (second_state.defined()) memory.second_state = second_state.mutable_data_ptr<float>();
  memory.gradient_factor = extras.gradient_factor;
  if (extras.copy.defined()) {
    memory.copy = extras.copy.mutable_data_ptr();
    memory.copy_type = flat_type(extras.copy);
  }
  step_flat(rule, memory, tails);
}

namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;

// The arguments of the kernels for one parameter.
struct FlatState {
  FlatRule rule;
  at::Tensor first;
  at::Tensor second;
};

template <typename State>
State& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (slot == nullptr) slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

at::Tensor zeros_of(const at::Tensor& parameter) {
  return torch::zeros_like(parameter, at::MemoryFormat::Preserve);
}

// Each makes a missing state as the optimizer's first step would.

template <typename State>
FlatState adam_state(Optimizer& optimizer, const OptimizerOptions& options, const at::Tensor& parameter) {
  auto& state = state_of<State>(optimizer, parameter);
  if (!state.exp_avg().defined()) {
    state.exp_avg(zeros_of(parameter));
    state.exp_avg_sq(zeros_of(parameter));
  }
  state.step(state.step() + 1);
  return {*flat_rule(options, state.step()), state.exp_avg(), state.exp_avg_sq()};
}

FlatState adagrad_state(Optimizer& optimizer, const torch::optim::AdagradOptions& options,
                        const at::Tensor& parameter) {
  auto& state = state_of<torch::optim::AdagradParamState>(optimizer, parameter);
  if (!state.sum().defined()) {
    state.step(0);
    state.sum(
        torch::full_like(parameter, options.initial_accumulator_value(), {}, at::MemoryFormat::Preserve));
  }
  state.step(state.step() + 1);
  return {*flat_rule(options, state.step()), state.sum(), {}};
}

FlatState lion_state(Optimizer& optimizer, const LionGroupOptions& options, const at::Tensor& parameter) {
  auto& state = state_of<LionParamState>(optimizer, parameter);
  if (!state.exp_avg().defined()) state.exp_avg(zeros_of(parameter));
  return {*flat_rule(options, 1), state.exp_avg(), {}};
}

FlatState sgd_state(Optimizer& optimizer, const torch::optim::SGDOptions& options,
                    const at::Tensor& parameter) {
  if (options.momentum() == 0) return {*flat_rule(options, 1), {}, {}};
  auto& state = state_of<torch::optim::SGDParamState>(optimizer, parameter);
  const bool is_first = !state.momentum_buffer().defined();
  if (is_first) state.momentum_buffer(zeros_of(parameter));
  return {*flat_rule(options, is_first ? 1 : 2), state.momentum_buffer(), {}};
}

template <typename Options>
FlatState flat_state(Optimizer& optimizer, const OptimizerOptions& options, const at::Tensor& parameter) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): names of one function
  const auto& own = static_cast<const Options&>(options);
  if constexpr (std::is_same_v<Options, AdamOptions>) {
    return adam_state<AdamParamState>(optimizer, own, parameter);
  } else if constexpr (std::is_same_v<Options, AdamWOptions>) {
    return adam_state<AdamWParamState>(optimizer, own, parameter);
  } else if constexpr (std::is_same_v<Options, AdagradOptions>) {
    return adagrad_state(optimizer, own, parameter);
  } else if constexpr (std::is_same_v<Options, LionGroupOptions>) {
    return lion_state(optimizer, own, parameter);
  } else {
    return sgd_state(optimizer, own, parameter);
  }
}

template <typename Options>
constexpr bool kHasKernel =
    kIsOneOf<Options, torch::optim::AdamOptions, torch::optim::AdamWOptions, torch::optim::AdagradOptions,
             torch::optim::SGDOptions, LionGroupOptions>;

}  // namespace

bool step_one_flat(Optimizer& optimizer, const OptimizerOptions& options, const at::Tensor& parameter,
                   const at::Tensor& gradient, const FlatExtras& extras) {
  // PythonAdam promises the bits of Python's Adam, which the kernels do not have.
  const bool is_exact = typeid(optimizer) == typeid(PythonAdam);
  if (is_exact || !is_flat(parameter) || !flat_rule(options, 1)) return false;
  bool done = false;
  visit_kind(optimizer, [&](const auto& kind) {
    using Options = typename std::decay_t<decltype(kind)>::Options;
    if constexpr (kHasKernel<Options>) {
      const FlatState state = flat_state<Options>(optimizer, options, parameter);
      const auto* const tailed = dynamic_cast<const StepsTails*>(&optimizer);
      step_tensor(state.rule, parameter, gradient, state.first, state.second, extras,
                  tailed == nullptr ? std::vector<FlatSegment>() : tailed->tails_of(parameter));
      done = true;
    }
  });
  return done;
}

}  // namespace lockstep::optim
