#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/data_parallel.h>
#include <lockstep/error.h>
#include <torch/nn/module.h>

#include <cmath>
#include <unordered_set>
#include <vector>

#include "parallel/coalesced_broadcast.h"
#include "parallel/gradient_norm.h"
#include "parallel/model_agreement.h"
#include "parallel/reducer.h"

namespace lockstep {

namespace {

// Reduces a bucket in a smaller dtype. A bucket that is no wider than the dtype is reduced as it is.
PendingReduction reduce_as(at::ScalarType dtype, std::vector<at::Tensor>& scratch,
                           const GradientBucket& bucket, const Communicator& communicator) {
  const at::Tensor gradients =
      bucket.gradients.is_complex() ? at::view_as_real(bucket.gradients).view(-1) : bucket.gradients;
  if (!gradients.is_floating_point() ||
      static_cast<size_t>(gradients.element_size()) <= c10::elementSize(dtype)) {
    return {communicator.all_reduce(gradients, ReduceOp::kMean), {}};
  }
  scratch.resize(bucket.count);
  at::Tensor& small = scratch[bucket.index];
  if (!small.defined()) {
    small = communicator.allocate(gradients.numel(), at::empty({0}, gradients.options().dtype(dtype)));
  }
  small.copy_(gradients).div_(communicator.size());
  return {communicator.all_reduce(small, ReduceOp::kSum), [gradients, &small] { gradients.copy_(small); }};
}

// With the arithmetic of PyTorch's fp16_compress_hook: cast, divide by the world size, sum, cast back.
// Empty for kNone.
GradientHook make_compression_hook(GradientCompression compression) {
  if (compression == GradientCompression::kNone) return {};
  const auto dtype = compression == GradientCompression::kFloat16 ? at::kHalf : at::kBFloat16;
  return [dtype, scratch = std::make_shared<std::vector<at::Tensor>>()](const GradientBucket& bucket,
                                                                        const Communicator& communicator) {
    return reduce_as(dtype, *scratch, bucket, communicator);
  };
}

constexpr int64_t kDefaultFirstBucketBytes = 1 << 20;
constexpr int64_t kDefaultBucketBytes = 25 << 20;

// A parameter, and its properties at construction.
struct WatchedParameter {
  std::string name;
  at::Tensor tensor;
  bool requires_grad;
  at::ScalarType dtype;
  at::Device device;
};

// Each parameter once: LibTorch lists a tied parameter under each of its names.
std::vector<WatchedParameter> distinct_parameters(const torch::nn::Module& module) {
  std::vector<WatchedParameter> parameters;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    parameters.push_back({item.key(), tensor, tensor.requires_grad(), tensor.scalar_type(), tensor.device()});
  }
  return parameters;
}

std::string describe(const at::Tensor& tensor) {
  std::string text =
      fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
  if (!tensor.is_contiguous()) text += fmt::format(" with strides [{}]", fmt::join(tensor.strides(), ", "));
  return text;
}

std::vector<parallel::ModelFact> facts_of(const std::vector<WatchedParameter>& parameters,
                                          const torch::nn::Module& module, const DataParallelOptions& options,
                                          const parallel::BucketLimits& limits) {
  std::vector<parallel::ModelFact> facts;
  for (const auto& parameter : parameters) {
    facts.push_back({"parameter " + parameter.name,
                     describe(parameter.tensor) + (parameter.requires_grad ? "" : " without requires_grad")});
  }
  for (const auto& buffer : module.named_buffers()) {
    facts.push_back({"buffer " + buffer.key(), describe(buffer.value())});
  }
  const auto option = [&](const char* name, auto value) {
    facts.push_back({fmt::format("option {}", name), fmt::format("{}", value)});
  };
  option("find_unused_parameters", options.find_unused_parameters);
  option("static_graph", options.static_graph);
  option("broadcast_buffers", options.broadcast_buffers);
  option("compression", static_cast<int>(options.compression));
  option("hook", options.hook ? "set" : "not set");
  option("bucket_cap_bytes", limits.bytes);
  option("first_bucket_cap_bytes", limits.first_bytes);
  return facts;
}

parallel::BucketLimits limits_of(const DataParallelOptions& options) {
  const int64_t bytes = options.bucket_cap_bytes.value_or(kDefaultBucketBytes);
  const int64_t first =
      options.first_bucket_cap_bytes.value_or(options.bucket_cap_bytes.value_or(kDefaultFirstBucketBytes));
  if (bytes <= 0) throw ConfigError("grad", fmt::format("bucket_cap_bytes must be positive: {}", bytes));
  if (first <= 0)
    throw ConfigError("grad", fmt::format("first_bucket_cap_bytes must be positive: {}", first));
  return {first, bytes};
}

void require_trainable(const std::vector<WatchedParameter>& parameters) {
  for (const auto& parameter : parameters) {
    if (parameter.tensor.layout() != at::kStrided) {
      throw ConfigError("grad", fmt::format("sparse parameters are not supported: {}", parameter.name));
    }
    if (parameter.requires_grad && !parameter.tensor.is_leaf()) {
      throw ConfigError(
          "grad",
          fmt::format("a parameter is not a leaf, so that no gradient is kept for it: {}", parameter.name));
    }
  }
}

}  // namespace

struct GradientSync::Impl {
  std::shared_ptr<torch::nn::Module> module;
  Communicator communicator;
  bool broadcast_buffers = true;
  std::vector<WatchedParameter> parameters;
  std::vector<at::Tensor> buffers;
  std::unique_ptr<parallel::Reducer> reducer;
  int no_sync_depth = 0;
  bool buffers_may_differ = false;

  void make_reducer(const DataParallelOptions& options, const parallel::BucketLimits& limits,
                    const parallel::BucketRules& rules);
  void require_unchanged() const;
};

void GradientSync::Impl::make_reducer(const DataParallelOptions& options,
                                      const parallel::BucketLimits& limits,
                                      const parallel::BucketRules& rules) {
  std::vector<parallel::NamedParameter> trained;
  for (const auto& parameter : parameters) {
    if (parameter.requires_grad) trained.push_back({parameter.name, parameter.tensor});
  }
  reducer = std::make_unique<parallel::Reducer>(
      std::move(trained), communicator,
      parallel::ReducerOptions{
          .limits = limits,
          .rules = rules,
          .find_unused_parameters = options.find_unused_parameters,
          .static_graph = options.static_graph,
          .hook = options.hook ? options.hook : make_compression_hook(options.compression)});
}

void GradientSync::Impl::require_unchanged() const {
  for (const auto& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    const char* change = nullptr;
    if (tensor.requires_grad() != parameter.requires_grad) {
      change = parameter.requires_grad ? "was frozen" : "was unfrozen";
    } else if (tensor.scalar_type() != parameter.dtype) {
      change = "changed its dtype";
    } else if (tensor.device() != parameter.device) {
      change = "changed its device";
    }
    if (change != nullptr) {
      throw ConfigError("grad",
                        fmt::format("a parameter {} after DataParallel was constructed; construct it again "
                                    "after such a change: {}",
                                    change, parameter.name));
    }
  }
}

GradientSync::GradientSync(std::shared_ptr<torch::nn::Module> module, Communicator communicator,
                           DataParallelOptions options)
    : GradientSync(std::move(module), std::move(communicator), std::move(options), {}) {}

GradientSync::GradientSync(std::shared_ptr<torch::nn::Module> module, Communicator communicator,
                           DataParallelOptions options, const parallel::BucketRules& rules)
    : impl_(std::make_unique<Impl>()) {
  const parallel::BucketLimits limits = limits_of(options);
  if (options.hook && options.compression != GradientCompression::kNone) {
    throw ConfigError("grad", "hook and compression exclude each other: leave one of them out");
  }
  impl_->module = std::move(module);
  impl_->communicator = std::move(communicator);
  impl_->broadcast_buffers = options.broadcast_buffers;
  impl_->parameters = distinct_parameters(*impl_->module);
  impl_->buffers = impl_->module->buffers();
  if (options.init_sync) {
    parallel::require_agreement(facts_of(impl_->parameters, *impl_->module, options, limits),
                                impl_->communicator);
  }
  require_trainable(impl_->parameters);
  if (options.init_sync) {
    std::vector<at::Tensor> state;
    for (const auto& parameter : impl_->parameters) {
      if (!rules.parameters_agree || !parameter.requires_grad) state.push_back(parameter.tensor);
    }
    state.insert(state.end(), impl_->buffers.begin(), impl_->buffers.end());
    parallel::broadcast_coalesced(state, impl_->communicator);
  } else {
    impl_->buffers_may_differ = true;
  }
  impl_->make_reducer(options, limits, rules);
}

GradientSync::~GradientSync() = default;

void GradientSync::prepare_forward() {
  impl_->reducer->drain();
  impl_->require_unchanged();
  // As in PyTorch, buffers are broadcast once a step, not once a micro batch: before the forward that
  // follows a reduction.
  if (impl_->broadcast_buffers && impl_->buffers_may_differ) sync_buffers();
  if (impl_->module->is_training() && impl_->no_sync_depth == 0) impl_->buffers_may_differ = true;
}

void GradientSync::sync_buffers() {
  parallel::broadcast_coalesced(impl_->buffers, impl_->communicator);
  impl_->buffers_may_differ = false;
}

void GradientSync::zero_grad() { impl_->reducer->zero_grad(); }

GradientSync::NoSync::NoSync(GradientSync* sync) : sync_(sync) {
  if (sync_->impl_->no_sync_depth++ == 0) sync_->impl_->reducer->set_sync(false);
}

GradientSync::NoSync::~NoSync() {
  if (sync_ != nullptr && --sync_->impl_->no_sync_depth == 0) sync_->impl_->reducer->set_sync(true);
}

at::Tensor GradientSync::clip_grad_norm(double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = flat_gradients();
  const at::Tensor total = parallel::total_norm(gradients, norm_type);
  parallel::limit_norm(gradients, total, max_norm);
  return total;
}

std::vector<at::Tensor> GradientSync::flat_gradients() const { return impl_->reducer->gradients(); }

std::chrono::nanoseconds GradientSync::exposed_wait() const { return impl_->reducer->waited(); }

std::vector<GradientSync::BucketStats> GradientSync::buckets() const {
  return impl_->reducer->bucket_stats();
}

int64_t GradientSync::gradient_bytes() const { return impl_->reducer->bucket_bytes(); }

const Communicator& GradientSync::communicator() const { return impl_->communicator; }

}  // namespace lockstep
