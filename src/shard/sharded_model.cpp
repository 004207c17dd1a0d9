#include <ATen/ATen.h>
#include <fmt/format.h>
#include <lockstep/data_parallel.h>
#include <lockstep/error.h>
#include <lockstep/named_tensors.h>
#include <lockstep/sharded_model.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "grad/gradient_norm.h"
#include "grad/model_agreement.h"
#include "grad/reducer.h"
#include "shard/memory_check.h"
#include "shard/model_layout.h"
#include "shard/shard_plan.h"
#include "shard/sharded_bucket.h"
#include "shard/sharded_optimizer.h"
#include "shard/sharded_state.h"
#include "shard/unit_map.h"
#include "shard/unit_schedule.h"

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

std::vector<grad::ModelFact> facts_of(const ShardedOptions& options) {
  return {{"option stage", std::to_string(options.stage)},
          {"option bucket_cap_bytes", std::to_string(options.bucket_cap_bytes)},
          {"option persistence_threshold", std::to_string(options.persistence_threshold)},
          {"option persistence_limit", std::to_string(options.persistence_limit)},
          {"option prefetch", std::to_string(options.prefetch ? options.prefetch_limit : 0)},
          {"option overlap", options.overlap ? "true" : "false"},
          {"option communication_dtype",
           options.communication_dtype ? c10::toString(*options.communication_dtype) : "unset"},
          {"options of the mean", fmt::format("{} {} {}", options.gradient_predivide_factor,
                                              options.divide_after_sum, options.sum_gradients)}};
}

class BucketGatherer final : public shard::Gatherer {
 public:
  BucketGatherer(std::vector<ShardedBucket>& buckets, Communicator communicator)
      : buckets_(buckets), memory_(std::move(communicator)) {}

  Work start(size_t bucket) override { return buckets_[bucket].start_gather(memory_); }
  void release(size_t bucket) override { buckets_[bucket].release(memory_); }
  void forget_free() override { memory_.forget_free(); }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  std::vector<ShardedBucket>& buckets_;
  grad::LentMemory memory_;
};

}  // namespace

struct ShardedModel::Impl {
  Impl(std::shared_ptr<torch::nn::Module> module, torch::optim::Optimizer& optimizer,
       Communicator communicator, ShardedOptions options);
  ~Impl();

  bool is_divided() const { return options.stage > 0; }
  bool has_transient_gradients() const { return options.stage >= 2; }

  void make_buckets(const std::vector<NamedParameter>& parameters, const std::vector<int>& groups);
  void attach_units();
  PendingReduction reduce(const GradientBucket& bucket);
  PendingReduction start_reduction(size_t index, const at::Tensor& flat);
  void accumulate(size_t index, const at::Tensor& reduced);
  // What this rank owns of the parameters, in a flat tensor of each bucket.
  template <typename Flat>
  std::vector<Part> parts(Flat flat_of) const;
  shard::StateView state_view() const { return {optimizer, buckets, items, place, group_names}; }

  const std::shared_ptr<torch::nn::Module> module;
  torch::optim::Optimizer& optimizer;
  const Communicator communicator;
  const ShardedOptions options;
  const Place place;

  std::vector<grad::BucketItem> items;
  std::vector<ShardedBucket> buckets;
  std::vector<std::vector<std::string>> group_names;
  std::vector<int> group_of;    // of each bucket
  std::vector<size_t> unit_of;  // of each bucket
  std::vector<shard::Unit*> units;
  std::unique_ptr<BucketGatherer> gatherer;
  std::unique_ptr<shard::UnitSchedule> schedule;
  std::unique_ptr<GradientSync> sync;

  // This rank's part of each bucket's mean gradient: memory of its own from stage 2 on,
  // else a part of the bucket.
  std::vector<at::Tensor> gradients;
  std::vector<bool> has_gradient;
};

ShardedModel::Impl::Impl(std::shared_ptr<torch::nn::Module> module_, torch::optim::Optimizer& optimizer_,
                         Communicator communicator_, ShardedOptions options_)
    : module(std::move(module_)),
      optimizer(optimizer_),
      communicator(std::move(communicator_)),
      options(shard::validated(std::move(options_))),
      place(options.stage == 0 ? Place{} : Place{communicator.size(), communicator.rank()}) {
  shard::require_elementwise(optimizer, options.allow_untested_optimizer);
  shard::require_fresh(optimizer);
  grad::require_agreement(facts_of(options), communicator);
  const std::vector<NamedParameter> parameters = trained_parameters(*module);
  const std::vector<int> groups = shard::groups_of(optimizer, parameters);
  shard::require_memory(*module, optimizer, communicator, options);
  group_names.resize(optimizer.param_groups().size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    group_names[static_cast<size_t>(groups[i])].push_back(parameters[i].name);
  }
  make_buckets(parameters, groups);

  grad::BucketRules rules{.plan = {},
                          .transient = has_transient_gradients(),
                          .late = !options.overlap || (options.stage == 3 && options.find_unused_parameters)};
  for (const ShardedBucket& bucket : buckets) rules.plan.push_back(bucket.layout());
  DataParallelOptions sync_options;
  sync_options.find_unused_parameters = options.find_unused_parameters;
  sync_options.broadcast_buffers = options.broadcast_buffers;
  sync_options.hook = [this](const GradientBucket& bucket, const Communicator&) { return reduce(bucket); };
  sync = std::make_unique<GradientSync>(module, communicator, sync_options, rules);

  for (ShardedBucket& bucket : buckets) bucket.divide();
  shard::hand_over(optimizer, buckets, group_of);
  attach_units();
  const std::vector<at::Tensor> flat = sync->flat_gradients();
  for (size_t i = 0; i < buckets.size(); ++i) {
    gradients.push_back(has_transient_gradients()
                            ? at::empty({buckets[i].layout().numel / place.ranks}, flat[i].options())
                            : buckets[i].own_part(flat[i]));
  }
  has_gradient.assign(buckets.size(), false);
}

ShardedModel::Impl::~Impl() {
  for (shard::Unit* unit : units) unit->attach(nullptr, 0);
}

void ShardedModel::Impl::make_buckets(const std::vector<NamedParameter>& parameters,
                                      const std::vector<int>& groups) {
  const shard::UnitMap map(*module);
  units = map.units();
  std::vector<shard::LayoutParameter> places;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    places.push_back({{tensor.numel(), tensor.scalar_type(), tensor.device()}, groups[i], map.of(tensor)});
  }
  const shard::ModelLayout planned = shard::lay_out(places, options, place.ranks);
  items = planned.items;
  for (const shard::LayoutBucket& bucket : planned.buckets) {
    buckets.emplace_back(bucket.layout, parameters, communicator, place, bucket.resident);
    group_of.push_back(bucket.group);
    unit_of.push_back(bucket.unit);
  }
  gatherer = std::make_unique<BucketGatherer>(buckets, communicator);
  schedule = std::make_unique<shard::UnitSchedule>(planned.by_unit(units.size() + 1), *gatherer,
                                                   options.prefetch ? options.prefetch_limit : 0);
}

void ShardedModel::Impl::attach_units() {
  for (size_t i = 0; i < units.size(); ++i) units[i]->attach(schedule.get(), i + 1);
}

PendingReduction ShardedModel::Impl::reduce(const GradientBucket& bucket) {
  const at::Tensor& flat = bucket.gradients;
  if (!has_transient_gradients() && has_gradient[bucket.index]) {
    throw ConfigError(
        "shard",
        "a second backward reduced gradients before step() or zero_grad(): put all but the last "
        "backward of a step into no_sync()");
  }
  PendingReduction reduction = start_reduction(bucket.index, flat);
  if (!buckets[bucket.index].resident()) schedule->bucket_reduced(unit_of[bucket.index]);
  return reduction;
}

PendingReduction ShardedModel::Impl::start_reduction(size_t index, const at::Tensor& flat) {
  const at::NoGradGuard no_grad;
  const double before = options.gradient_predivide_factor;
  const double after = before / communicator.size();
  const bool is_split = !options.sum_gradients && (before != 1.0 || options.divide_after_sum);
  const bool converts = options.communication_dtype && *options.communication_dtype != flat.scalar_type();
  // The first of a step is reduced to where it stays; others are added to it.
  const bool direct = !converts && !has_gradient[index];
  at::Tensor input = flat;
  if (converts) input = input.to(*options.communication_dtype);
  if (before != 1.0) input.mul_(1.0 / before);
  const ReduceOp op = is_split || options.sum_gradients ? ReduceOp::kSum : ReduceOp::kMean;
  at::Tensor output;
  Work work;
  if (!is_divided()) {
    output = input;
    work = communicator.all_reduce(input, op);
  } else {
    output = direct ? gradients[index] : at::empty({input.numel() / place.ranks}, input.options());
    work = communicator.reduce_scatter(output, input, op);
  }
  auto finish = [this, index, input, output, is_split, after] {
    const at::NoGradGuard inner_no_grad;
    if (is_split) output.mul_(after);
    accumulate(index, output);
  };
  return {std::move(work), std::move(finish)};
}

void ShardedModel::Impl::accumulate(size_t index, const at::Tensor& reduced) {
  at::Tensor& gradient = gradients[index];
  if (has_gradient[index]) {
    gradient.add_(reduced);
  } else if (reduced.const_data_ptr() != gradient.const_data_ptr()) {
    gradient.copy_(reduced);
  }
  has_gradient[index] = true;
}

template <typename Flat>
std::vector<ShardedModel::Part> ShardedModel::Impl::parts(Flat flat_of) const {
  std::vector<Part> parts;
  for (const ShardedBucket& bucket : buckets) {
    for (const shard::OwnedRange& range :
         shard::owned_ranges(bucket.layout(), items, place.ranks, place.rank)) {
      const NamedParameter& parameter = bucket.parameters()[range.slot];
      parts.push_back({parameter.name, bucket.shape(range.slot).vec(), range.first,
                       flat_of(bucket).narrow(0, range.offset, range.count)});
    }
  }
  return parts;
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
  impl_->has_gradient.assign(impl_->buckets.size(), false);
}

std::vector<at::Tensor> ShardedModel::flat_gradients() const { return impl_->gradients; }

at::Tensor ShardedModel::grad_norm(double norm_type) const {
  const at::NoGradGuard no_grad;
  // 16 bits would round the sum of many squares.
  at::Tensor total = grad::total_norm(impl_->gradients, norm_type, at::kFloat);
  if (impl_->place.ranks > 1) {
    const bool is_max = std::isinf(norm_type);
    if (!is_max) total.pow_(norm_type);
    impl_->communicator.all_reduce(total, is_max ? ReduceOp::kMax : ReduceOp::kSum).wait();
    if (!is_max) total.pow_(1.0 / norm_type);
  }
  return total;
}

at::Tensor ShardedModel::clip_grad_norm(double max_norm, double norm_type) {
  const at::NoGradGuard no_grad;
  at::Tensor total = grad_norm(norm_type);
  grad::limit_norm(impl_->gradients, total, max_norm);
  return total;
}

void ShardedModel::step(const at::Tensor& factor) {
  if (impl_->schedule->is_held()) {
    throw ConfigError("shard", "step() was called while gather_parameters() keeps the parameters whole");
  }
  impl_->schedule->release_all();
  std::vector<Work> updates;
  // Buckets come as backward fills them; forward needs the last ones first.
  for (size_t i = impl_->buckets.size(); i-- > 0;) {
    if (!impl_->has_gradient[i]) continue;
    ShardedBucket& bucket = impl_->buckets[i];
    shard::step_one(impl_->optimizer, bucket.master(), impl_->gradients[i], factor);
    bucket.take_update();
    updates.push_back(bucket.publish());
  }
  for (Work& update : updates) update.wait();
}

GradientSync::NoSync ShardedModel::no_sync() { return impl_->sync->no_sync(); }

ShardedModel::Gathered::Gathered(ShardedModel* model) : model_(model) { model_->impl_->schedule->hold(); }

ShardedModel::Gathered::~Gathered() {
  if (model_ == nullptr) return;
  for (ShardedBucket& bucket : model_->impl_->buckets) bucket.adopt_whole();
  model_->impl_->schedule->unhold();
}

const ShardedOptions& ShardedModel::options() const { return impl_->options; }
const Communicator& ShardedModel::communicator() const { return impl_->communicator; }
std::chrono::nanoseconds ShardedModel::exposed_wait() const { return impl_->sync->exposed_wait(); }

ShardedModel::Memory ShardedModel::memory() const {
  Memory memory;
  for (const ShardedBucket& bucket : impl_->buckets) {
    memory.parameters += bucket.parameter_bytes();
    memory.master += bucket.master_bytes();
  }
  const bool transient = impl_->has_transient_gradients();
  for (const at::Tensor& gradient : impl_->gradients) {
    if (transient) memory.gradients += static_cast<int64_t>(gradient.nbytes());
  }
  (transient ? memory.buffers : memory.gradients) += impl_->sync->gradient_bytes();
  memory.buffers += impl_->gatherer->bytes();
  memory.optimizer = shard::state_bytes(impl_->optimizer);
  return memory;
}

std::vector<ShardedModel::Part> ShardedModel::parameter_parts() const {
  return impl_->parts([](const ShardedBucket& bucket) { return bucket.part(); });
}

std::vector<ShardedModel::Part> ShardedModel::master_parts() const {
  return impl_->parts([](const ShardedBucket& bucket) { return bucket.master(); });
}

std::map<std::string, std::vector<int64_t>> ShardedModel::shapes() const {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ShardedBucket& bucket : impl_->buckets) {
    for (size_t i = 0; i < bucket.parameters().size(); ++i) {
      shapes.emplace(bucket.parameters()[i].name, bucket.shape(i).vec());
    }
  }
  return shapes;
}

bool ShardedModel::has_masters() const {
  return std::any_of(impl_->buckets.begin(), impl_->buckets.end(),
                     [](const ShardedBucket& bucket) { return bucket.has_master(); });
}

void ShardedModel::load_parameters(const ReadParts& read, const ReadParts& read_masters) {
  const at::NoGradGuard no_grad;
  impl_->schedule->release_all();
  const auto fill = [](const std::vector<Part>& parts, const ReadParts& from) {
    std::vector<Part> on_host = parts;
    for (Part& part : on_host) {
      if (!part.data.is_cpu()) part.data = at::empty_like(part.data, at::kCPU);
    }
    from(on_host);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].data.is_cpu()) parts[i].data.copy_(on_host[i].data);
    }
  };
  fill(parameter_parts(), read);
  for (ShardedBucket& bucket : impl_->buckets) bucket.adopt_part();
  if (read_masters && has_masters()) fill(master_parts(), read_masters);
  std::vector<Work> updates;
  for (ShardedBucket& bucket : impl_->buckets) updates.push_back(bucket.publish());
  for (Work& update : updates) update.wait();
}

ShardedModel::OptimizerParts ShardedModel::optimizer_parts() const {
  return shard::save_state(impl_->state_view());
}

void ShardedModel::load_optimizer(const std::string& values, const ReadParts& read) {
  shard::load_state(impl_->state_view(), values, read);
}

}  // namespace lockstep
