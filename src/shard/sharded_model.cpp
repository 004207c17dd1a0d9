#include <ATen/ATen.h>
#include <fmt/format.h>
#include <lockstep/data_parallel.h>
#include <lockstep/error.h>
#include <lockstep/named_tensors.h>
#include <lockstep/optimizer_state.h>
#include <lockstep/sharded_model.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/log.h"
#include "grad/gradient_norm.h"
#include "grad/lent_memory.h"
#include "grad/model_agreement.h"
#include "grad/reducer.h"
#include "optim/flat_optimizer.h"
#include "shard/checked_options.h"
#include "shard/memory_check.h"
#include "shard/model_layout.h"
#include "shard/shard_plan.h"
#include "shard/sharded_model_impl.h"
#include "shard/sharded_optimizer.h"
#include "shard/unit_map.h"

namespace lockstep {

using shard::NamedParameter;
using shard::Place;
using shard::ShardedBucket;

namespace {

std::vector<NamedParameter> trained_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  for (const auto& [name, tensor] : named_parameters(module)) {
    if (!tensor.requires_grad()) continue;
    parameters.push_back({name, tensor});
    // Parts of a parameter are runs of its elements in row-major order.
    if (!tensor.is_contiguous()) parameters.back().tensor.set_data(tensor.detach().contiguous());
  }
  return parameters;
}

// What is not trained is on the device as a whole.
void move_rest(torch::nn::Module& module, c10::Device device) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& buffer : module.buffers()) {
    if (buffer.device() != device) buffer.set_data(buffer.to(device));
  }
  for (at::Tensor& parameter : module.parameters()) {
    if (!parameter.requires_grad() && parameter.device() != device) parameter.set_data(parameter.to(device));
  }
}

}  // namespace

ShardedModel::Impl::Impl(std::shared_ptr<torch::nn::Module> module_, torch::optim::Optimizer& optimizer_,
                         Communicator communicator_, ShardedOptions options_)
    : module(std::move(module_)),
      optimizer(optimizer_),
      communicator(std::move(communicator_)),
      options(shard::checked(std::move(options_))),
      place(options.stage == 0 ? Place{} : Place{communicator.size(), communicator.rank()}) {
  shard::require_elementwise(optimizer, options.allow_untested_optimizer);
  shard::require_fresh(optimizer);
  grad::require_agreement(shard::facts_of(options), communicator);
  const std::vector<NamedParameter> parameters = trained_parameters(*module);
  const std::vector<int> groups = shard::groups_of(optimizer, parameters);
  shard::warn_of_casts(*module, communicator, options);
  shard::require_memory(*module, optimizer, communicator, options);
  group_names.resize(optimizer.param_groups().size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    group_names[static_cast<size_t>(groups[i])].push_back(parameters[i].name);
  }
  make_homes(parameters);
  make_buckets(parameters, groups);
  std::unique_ptr<shard::NvmeStates> file;
  try {
    if (is_nvme()) file = make_file();
    make_sync();
  } catch (...) {
    for (ShardedBucket& bucket : buckets) bucket.undo();
    throw;
  }
  {
    grad::LentMemory memory(communicator);
    for (size_t i = 0; i < buckets.size(); ++i) {
      buckets[i].divide(memory);
      if (file) file->store(i, {buckets[i].master()});
    }
  }
  shard::hand_over(optimizer, buckets, group_of);
  attach_units();
  gradients = std::make_unique<shard::PartGradients>(buckets, sync->flat_gradients(), communicator, options,
                                                     *lane, host_copies.get());
  updates = std::make_unique<shard::PartOptimizer>(optimizer, buckets, group_of, *lane, host_copies.get(),
                                                   std::move(file));
}

void ShardedModel::Impl::make_homes(const std::vector<NamedParameter>& parameters) {
  if (!parameters.empty()) device = parameters.front().tensor.device();
  // "cuda" is the current one of several.
  if (options.device) device = at::empty({0}, at::TensorOptions(*options.device)).device();
  lane = std::make_unique<shard::CopyLane>(device);
  if (options.device) move_rest(*module, device);
  int64_t bytes = 0;  // of this rank's parts
  for (const NamedParameter& parameter : parameters) {
    bytes += static_cast<int64_t>(parameter.tensor.nbytes()) / place.ranks;
  }
  const bool pin_states = options.offload_optimizer.pin_memory && !device.is_cpu();
  const bool pin_parameters = options.offload_param.pin_memory && !device.is_cpu();
  if (offloads_optimizer()) {
    // The kernels alone touch these.
    host_states = std::make_unique<shard::HostMemory>(false, 2 * bytes);
    host_copies = std::make_unique<shard::HostMemory>(pin_states, bytes);
  }
  if (offloads_parameters()) host_parameters = std::make_unique<shard::HostMemory>(pin_parameters, bytes);
}

std::unique_ptr<shard::NvmeStates> ShardedModel::Impl::make_file() const {
  std::vector<int64_t> tensor_bytes;
  std::vector<int64_t> max_tensors;
  for (size_t i = 0; i < buckets.size(); ++i) {
    tensor_bytes.push_back(buckets[i].layout().numel / place.ranks *
                           static_cast<int64_t>(c10::elementSize(buckets[i].master_type())));
    const auto& group = optimizer.param_groups()[static_cast<size_t>(group_of[i])];
    const int tensors = optim::max_state_tensors(optimizer, group.options());
    if (tensors < 0) {
      throw ConfigError("shard", fmt::format("offload_optimizer to nvme: how much state this class keeps is "
                                             "not known; offload to cpu, or use another class than {}",
                                             optimizer_class(optimizer)));
    }
    max_tensors.push_back(1 + tensors);
  }
  return std::make_unique<shard::NvmeStates>(options.offload_optimizer, options.aio, tensor_bytes,
                                             max_tensors);
}

void ShardedModel::Impl::make_sync() {
  grad::BucketRules rules{.plan = {},
                          .transient = has_transient_gradients(),
                          .late = !options.overlap || (options.stage == 3 && options.find_unused_parameters),
                          .parameters_agree = true};
  for (const ShardedBucket& bucket : buckets) rules.plan.push_back(bucket.layout());
  DataParallelOptions sync_options;
  sync_options.find_unused_parameters = options.find_unused_parameters;
  sync_options.broadcast_buffers = options.broadcast_buffers;
  sync_options.hook = [this](const GradientBucket& bucket, const Communicator&) { return reduce(bucket); };
  sync = std::make_unique<GradientSync>(module, communicator, sync_options, rules);
}

ShardedModel::Impl::~Impl() {
  // Nobody may write into memory that is gone.
  for (size_t unit = 0; gatherer && unit <= units.size(); ++unit) {
    try {
      gatherer->settle(unit);
    } catch (const std::exception& error) {
      base::log_debug("shard", "the last update has not arrived: {}", error.what());
    }
  }
  for (shard::Unit* unit : units) unit->attach(nullptr, 0);
}

void ShardedModel::Impl::make_buckets(const std::vector<NamedParameter>& parameters,
                                      const std::vector<int>& groups) {
  const shard::UnitMap map(*module);
  units = map.units();
  std::vector<shard::LayoutParameter> places;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    const c10::Device home = options.device ? device : tensor.device();
    places.push_back({{tensor.numel(), tensor.scalar_type(), home}, groups[i], map.of(tensor)});
  }
  const shard::ModelLayout planned = shard::lay_out(places, options, place.ranks);
  items = planned.items;
  const shard::Homes homes{lane.get(), host_parameters.get(), host_states.get(), is_nvme()};
  for (const shard::LayoutBucket& bucket : planned.buckets) {
    buckets.emplace_back(bucket.layout, parameters, communicator, place, bucket.resident, homes);
    group_of.push_back(bucket.group);
    unit_of.push_back(bucket.unit);
  }
  gatherer = std::make_unique<shard::BucketGatherer>(
      buckets, planned.resident_by_unit(places, units.size() + 1), communicator);
  schedule = std::make_unique<shard::UnitSchedule>(planned.by_unit(units.size() + 1), *gatherer,
                                                   options.prefetch ? options.prefetch_limit : 0);
}

void ShardedModel::Impl::attach_units() {
  for (size_t i = 0; i < units.size(); ++i) units[i]->attach(schedule.get(), i + 1);
}

PendingReduction ShardedModel::Impl::reduce(const GradientBucket& bucket) {
  PendingReduction reduction = gradients->reduce(bucket.index, bucket.gradients);
  if (!buckets[bucket.index].resident()) schedule->bucket_reduced(unit_of[bucket.index]);
  return reduction;
}

ShardedModel::ShardedModel(std::shared_ptr<torch::nn::Module> module, torch::optim::Optimizer& optimizer,
                           Communicator communicator, ShardedOptions options)
    : impl_(std::make_unique<Impl>(std::move(module), optimizer, std::move(communicator),
                                   std::move(options))) {}

ShardedModel::~ShardedModel() = default;

void ShardedModel::prepare_forward() {
  impl_->schedule->begin_step();
  impl_->sync->prepare_forward();
}

void ShardedModel::sync_buffers() { impl_->sync->sync_buffers(); }

void ShardedModel::prepare_evaluation() {
  impl_->schedule->begin_step();
  sync_buffers();
}

void ShardedModel::zero_grad() {
  impl_->sync->zero_grad();
  impl_->gradients->forget();
}

std::vector<at::Tensor> ShardedModel::flat_gradients() const { return impl_->gradients->all(); }

at::Tensor ShardedModel::grad_norm(double norm_type) const {
  const at::NoGradGuard no_grad;
  // 16 bits would round the sum of many squares.
  at::Tensor total = grad::total_norm(impl_->gradients->all(), norm_type, at::kFloat);
  if (impl_->place.ranks > 1) {
    const bool is_max = std::isinf(norm_type);
    if (!is_max) total.pow_(norm_type);
    // Offloaded gradients are in host memory, which not every backend takes.
    const at::Tensor shared = total.to(impl_->device);
    impl_->communicator.all_reduce(shared, is_max ? ReduceOp::kMax : ReduceOp::kSum).wait();
    total = shared.to(total.device());
    if (!is_max) total.pow_(1.0 / norm_type);
  }
  return total;
}

at::Tensor ShardedModel::clip_grad_norm(double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  at::Tensor total = grad_norm(norm_type);
  grad::limit_norm(impl_->gradients->all(), total, max_norm);
  return total;
}

void ShardedModel::step(const at::Tensor& factor) {
  if (impl_->schedule->is_held()) {
    throw ConfigError("shard", "step() was called while gather_parameters() keeps the parameters whole");
  }
  impl_->gatherer->settle_all();
  impl_->schedule->release_all();
  impl_->updates->begin_step(factor);
  // Buckets come as backward fills them; forward needs the last ones first.
  std::vector<size_t> order;
  for (size_t i = impl_->buckets.size(); i-- > 0;) {
    if (impl_->gradients->has(i)) order.push_back(i);
  }
  for (size_t k = 0; k < order.size(); ++k) {
    const std::optional<size_t> next = k + 1 < order.size() ? std::optional(order[k + 1]) : std::nullopt;
    impl_->updates->step(order[k], impl_->gradients->of(order[k]), next);
    impl_->gatherer->publish(order[k]);
  }
  if (!impl_->options.overlap_gather) {
    finish_step();
    return;
  }
  // Units wait for theirs when they run.
  impl_->gatherer->settle(0);
  impl_->gatherer->set_aside();
}

void ShardedModel::finish_step() { impl_->gatherer->settle_all(); }

GradientSync::NoSync ShardedModel::no_sync() { return impl_->sync->no_sync(); }

ShardedModel::Gathered::Gathered(ShardedModel* model) : model_(model) { model_->impl_->schedule->hold(); }

ShardedModel::Gathered::~Gathered() {
  if (model_ == nullptr) return;
  Impl& impl = *model_->impl_;
  for (size_t i = 0; i < impl.buckets.size(); ++i) {
    if (!impl.buckets[i].may_be_written()) continue;  // to change a master may cost a disk's time
    impl.updates->change(i, [&] { impl.buckets[i].adopt_whole(); });
  }
  model_->impl_->schedule->unhold();
}

const ShardedOptions& ShardedModel::options() const { return impl_->options; }
const Communicator& ShardedModel::communicator() const { return impl_->communicator; }
std::chrono::nanoseconds ShardedModel::exposed_wait() const { return impl_->sync->exposed_wait(); }

}  // namespace lockstep
