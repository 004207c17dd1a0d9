
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <lockstep/communicator.h>
#include <lockstep/data_parallel.h>
#include <lockstep/error.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "optim/optimizer_state.h"
#include "parallel/bucket_plan.h"
#include "parallel/flat_buffer.h"
#include "parallel/gradient_norm.h"
#include "parallel/model_agreement.h"
#include "parallel/model_layout.h"
#include "parallel/offload.h"
#include "parallel/reducer.h"
#include "parallel/shard_gradients.h"
#include "parallel/shard_optimizer.h"
#include "parallel/sharded_bucket.h"
#include "parallel/unit_schedule.h"
#include "parallel/zero_plan.h"

namespace lockstep::parallel {

// Gathers the buckets of a model, which outlive it: into lent memory, and resident ones after an
// update.
class BucketGatherer final : public Gatherer {
 public:
  // `resident_of`: the resident buckets in which each unit has parameters.
  BucketGatherer(std::vector<ShardedBucket>& buckets, std::vector<std::vector<size_t>> resident_of,
                 Communicator communicator)
      : buckets_(buckets),
        resident_of_(std::move(resident_of)),
        updates_(buckets.size()),
        memory_(std::move(communicator)) {}

  Gather start(size_t bucket) override { return buckets_[bucket].start_gather(memory_); }
  void release(size_t bucket) override { buckets_[bucket].release(memory_); }
  // After an update of this rank's shard.
  void publish(size_t bucket) { updates_[bucket] = buckets_[bucket].publish(); }
  void wait_for_updates(size_t unit) override {
    for (const size_t bucket : resident_of_[unit]) updates_[bucket].wait();
  }
  void wait_for_all_updates() {
    for (Work& update : updates_) update.wait();
  }
  // Units wait for the published updates when they run, maybe on other threads.
  void leave_to_units() {
    for (Work& update : updates_) update.set_aside();
  }
  void forget_free() override { memory_.forget_free(); }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  std::vector<ShardedBucket>& buckets_;
  const std::vector<std::vector<size_t>> resident_of_;
  std::vector<Work> updates_;  // in flight, by bucket
  LentMemory memory_;
};

}  // namespace lockstep::parallel

namespace lockstep {

struct ShardedModel::Impl {
  Impl(std::shared_ptr<torch::nn::Module> module, torch::optim::Optimizer& optimizer,
       Communicator communicator, ShardedOptions options);
  ~Impl();

  bool has_transient_gradients() const { return options.zero.stage >= 2; }
  bool offloads_optimizer() const { return options.zero.offload_optimizer.device != OffloadDevice::kNone; }
  bool is_nvme() const { return options.zero.offload_optimizer.device == OffloadDevice::kNvme; }
  bool offloads_parameters() const { return options.zero.offload_param.device != OffloadDevice::kNone; }

  void make_homes(const std::vector<parallel::NamedParameter>& parameters);
  std::unique_ptr<parallel::NvmeStates> make_file() const;
  void make_buckets(const std::vector<parallel::NamedParameter>& parameters, const std::vector<int>& groups);
  void make_sync();
  void attach_units();
  PendingReduction reduce(const GradientBucket& bucket);
  // Adds what this rank owns of the parameters of one bucket. `set` fills the content of a part, which
  // is elements [offset, offset + count) of the bucket's shard.
  using SetContent = std::function<void(Part& part, int64_t offset, int64_t count)>;
  void add_parts(size_t bucket, const SetContent& set, std::vector<Part>& parts) const;
  parallel::StateView state_view() const { return {optimizer, buckets, items, place, group_names, *updates}; }

  const std::shared_ptr<torch::nn::Module> module;
  torch::optim::Optimizer& optimizer;
  const Communicator communicator;
  const ShardedOptions options;
  const parallel::Place place;

  c10::Device device{c10::kCPU};
  std::unique_ptr<parallel::CopyLane> lane;
  std::unique_ptr<parallel::HostMemory> host_states;      // masters
  std::unique_ptr<parallel::HostMemory> host_copies;      // gradients and what goes to the device
  std::unique_ptr<parallel::HostMemory> host_parameters;  // of buckets that are not resident

  std::vector<parallel::BucketItem> items;
  std::vector<parallel::ShardedBucket> buckets;
  std::vector<std::vector<std::string>> group_names;
  std::vector<int> group_of;    // of each bucket
  std::vector<size_t> unit_of;  // of each bucket
  std::vector<parallel::Unit*> units;
  std::unique_ptr<parallel::BucketGatherer> gatherer;
  std::unique_ptr<parallel::UnitSchedule> schedule;
  std::unique_ptr<GradientSync> sync;

  std::unique_ptr<parallel::ShardGradients> gradients;
  std::unique_ptr<parallel::ShardOptimizer> updates;
};

using parallel::NamedParameter;
using parallel::Place;
using parallel::ShardedBucket;

namespace {

// What all ranks must agree on.
std::vector<parallel::ModelFact> facts_of(const ShardedOptions& options) {
  const ZeroOptions& zero = options.zero;
  return {{"option stage", std::to_string(zero.stage)},
          {"option bucket_cap_bytes", std::to_string(zero.bucket_cap_bytes)},
          {"option persistence_threshold", std::to_string(zero.persistence_threshold)},
          {"option persistence_limit", std::to_string(zero.persistence_limit)},
          {"option prefetch", std::to_string(zero.prefetch ? zero.prefetch_limit : 0)},
          {"option overlap", zero.overlap ? "true" : "false"},
          {"option overlap_gather", zero.overlap_gather ? "true" : "false"},
          {"option communication_dtype",
           options.communication_dtype ? c10::toString(*options.communication_dtype) : "unset"},
          {"options of the mean", fmt::format("{} {} {}", options.gradient_predivide_factor,
                                              options.divide_after_sum, options.sum_gradients)},
          {"option offload_optimizer", name_of(zero.offload_optimizer.device)},
          {"option offload_param", name_of(zero.offload_param.device)}};
}

std::vector<NamedParameter> trained_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  for (const auto& [name, tensor] : named_parameters(module)) {
    if (!tensor.requires_grad()) continue;
    parameters.push_back({name, tensor});
    // Shards are runs of a parameter's elements in row-major order.
    if (!tensor.is_contiguous()) parameters.back().tensor.set_data(tensor.detach().contiguous());
  }
  return parameters;
}

void require_real(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& parameter : parameters) {
    if (!parameter.tensor.is_complex()) continue;
    throw ConfigError("shard", fmt::format("complex parameters are not sharded, replicate the model with "
                                           "DataParallel: {}",
                                           parameter.name));
  }
}

// Buffers and frozen parameters are on the device, whole.
void move_rest(torch::nn::Module& module, c10::Device device) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& buffer : module.buffers()) {
    if (buffer.device() != device) buffer.set_data(buffer.to(device));
  }
  for (at::Tensor& parameter : module.parameters()) {
    if (!parameter.requires_grad() && parameter.device() != device) parameter.set_data(parameter.to(device));
  }
}

// Fills parts with views of a flat tensor.
auto within(const at::Tensor& flat) {
  return [&flat](ShardedModel::Part& part, int64_t offset, int64_t count) {
    part.data = flat.narrow(0, offset, count);
  };
}

}  // namespace

ShardedModel::Impl::Impl(std::shared_ptr<torch::nn::Module> module_, torch::optim::Optimizer& optimizer_,
                         Communicator communicator_, ShardedOptions options_)
    : module(std::move(module_)),
      optimizer(optimizer_),
      communicator(std::move(communicator_)),
      options(parallel::checked(std::move(options_))),
      place(options.zero.stage == 0 ? Place{} : Place{communicator.size(), communicator.rank()}) {
  parallel::require_elementwise(optimizer, options.allow_untested_optimizer);
  parallel::require_fresh(optimizer);
  parallel::require_agreement(facts_of(options), communicator);
  const std::vector<NamedParameter> parameters = trained_parameters(*module);
  require_real(parameters);
  const std::vector<int> groups = parallel::groups_of(optimizer, parameters);
  parallel::warn_of_casts(*module, communicator, options);
  parallel::require_memory(*module, optimizer, communicator, options);
  group_names.resize(optimizer.param_groups().size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    group_names[static_cast<size_t>(groups[i])].push_back(parameters[i].name);
  }
  make_homes(parameters);
  make_buckets(parameters, groups);
  std::unique_ptr<parallel::NvmeStates> file;
  try {
    if (is_nvme()) file = make_file();
    make_sync();
  } catch (...) {
    for (ShardedBucket& bucket : buckets) bucket.undo();
    throw;
  }
  {
    parallel::LentMemory memory(communicator);
    for (size_t i = 0; i < buckets.size(); ++i) {
      buckets[i].make_shard(memory);
      if (file) file->store(i, {buckets[i].master()});
    }
  }
  parallel::hand_over(optimizer, buckets, group_of, items, place);
  attach_units();
  gradients = std::make_unique<parallel::ShardGradients>(buckets, sync->flat_gradients(), communicator,
                                                         options, *lane, host_copies.get());
  updates = std::make_unique<parallel::ShardOptimizer>(optimizer, buckets, group_of, *lane, host_copies.get(),
                                                       std::move(file));
}

void ShardedModel::Impl::make_homes(const std::vector<NamedParameter>& parameters) {
  if (!parameters.empty()) device = parameters.front().tensor.device();
  // "cuda" without an index is the current device.
  if (options.device) device = at::empty({0}, at::TensorOptions(*options.device)).device();
  lane = std::make_unique<parallel::CopyLane>(device);
  if (options.device) move_rest(*module, device);
  int64_t bytes = 0;  // of this rank's shards
  for (const NamedParameter& parameter : parameters) {
    bytes += static_cast<int64_t>(parameter.tensor.nbytes()) / place.ranks;
  }
  const bool pin_states = options.zero.offload_optimizer.pin_memory && !device.is_cpu();
  const bool pin_parameters = options.zero.offload_param.pin_memory && !device.is_cpu();
  if (offloads_optimizer()) {
    // Only the CPU's kernels touch these: no need to page-lock them.
    host_states = std::make_unique<parallel::HostMemory>(false, 2 * bytes);
    host_copies = std::make_unique<parallel::HostMemory>(pin_states, bytes);
  }
  if (offloads_parameters()) host_parameters = std::make_unique<parallel::HostMemory>(pin_parameters, bytes);
}

std::unique_ptr<parallel::NvmeStates> ShardedModel::Impl::make_file() const {
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
  return std::make_unique<parallel::NvmeStates>(options.zero.offload_optimizer, options.zero.aio,
                                                tensor_bytes, max_tensors);
}

void ShardedModel::Impl::make_sync() {
  parallel::BucketRules rules{
      .plan = {},
      .transient = has_transient_gradients(),
      .late = !options.zero.overlap || (options.zero.stage == 3 && options.find_unused_parameters),
      .parameters_agree = true};
  for (const ShardedBucket& bucket : buckets) rules.plan.push_back(bucket.layout());
  DataParallelOptions sync_options;
  sync_options.find_unused_parameters = options.find_unused_parameters;
  sync_options.broadcast_buffers = options.broadcast_buffers;
  sync_options.hook = [this](const GradientBucket& bucket, const Communicator&) { return reduce(bucket); };
  sync = std::make_unique<GradientSync>(module, communicator, sync_options, rules);
}

ShardedModel::Impl::~Impl() {
  // Updates in flight must not write into freed memory.
  for (size_t unit = 0; gatherer && unit <= units.size(); ++unit) {
    try {
      gatherer->wait_for_updates(unit);
    } catch (const std::exception& error) {
      base::log_debug("shard", "the last update was not gathered: {}", error.what());
    }
  }
  for (parallel::Unit* unit : units) unit->attach(nullptr, 0);
}

void ShardedModel::Impl::make_buckets(const std::vector<NamedParameter>& parameters,
                                      const std::vector<int>& groups) {
  const parallel::UnitMap map(*module);
  units = map.units();
  std::vector<parallel::LayoutParameter> places;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    const c10::Device home = options.device ? device : tensor.device();
    places.push_back({{tensor.numel(), tensor.scalar_type(), home}, groups[i], map.of(tensor)});
  }
  const parallel::ModelLayout planned = parallel::lay_out(places, options.zero, place.ranks);
  items = planned.items;
  const parallel::Homes homes{lane.get(), host_parameters.get(), host_states.get(), is_nvme()};
  for (const parallel::LayoutBucket& bucket : planned.buckets) {
    buckets.emplace_back(bucket.layout, parameters, communicator, place, bucket.resident, homes);
    group_of.push_back(bucket.group);
    unit_of.push_back(bucket.unit);
  }
  gatherer = std::make_unique<parallel::BucketGatherer>(
      buckets, planned.resident_by_unit(places, units.size() + 1), communicator);
  schedule = std::make_unique<parallel::UnitSchedule>(
      planned.by_unit(units.size() + 1), *gatherer, options.zero.prefetch ? options.zero.prefetch_limit : 0);
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
  at::Tensor total = parallel::total_norm(impl_->gradients->all(), norm_type, at::kFloat);
  if (impl_->place.ranks > 1) {
    const bool is_max = std::isinf(norm_type);
    if (!is_max) total.pow_(norm_type);
    // Offloaded gradients are in host memory, which not every backend reduces.
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
  parallel::limit_norm(impl_->gradients->all(), total, max_norm);
  return total;
}

void ShardedModel::step(const at::Tensor& factor) {
  if (impl_->schedule->is_held()) {
    throw ConfigError("shard", "step() was called while gather_parameters() keeps the parameters whole");
  }
  impl_->gatherer->wait_for_all_updates();
  impl_->schedule->release_all();
  impl_->updates->begin_step(factor);
  // Buckets are in the order of backward; forward needs the last ones first.
  std::vector<size_t> order;
  for (size_t i = impl_->buckets.size(); i-- > 0;) {
    if (impl_->gradients->has(i)) order.push_back(i);
  }
  for (size_t k = 0; k < order.size(); ++k) {
    const std::optional<size_t> next = k + 1 < order.size() ? std::optional(order[k + 1]) : std::nullopt;
    impl_->updates->step(order[k], impl_->gradients->of(order[k]), next);
    impl_->gatherer->publish(order[k]);
  }
  if (!impl_->options.zero.overlap_gather) {
    finish_step();
    return;
  }
  // Units wait for their own updates when they run.
  impl_->gatherer->wait_for_updates(0);
  impl_->gatherer->leave_to_units();
}

void ShardedModel::finish_step() { impl_->gatherer->wait_for_all_updates(); }

GradientSync::NoSync ShardedModel::no_sync() { return impl_->sync->no_sync(); }

ShardedModel::Gathered::Gathered(ShardedModel* model) : model_(model) { model_->impl_->schedule->hold(); }

ShardedModel::Gathered::~Gathered() {
  if (model_ == nullptr) return;
  Impl& impl = *model_->impl_;
  for (size_t i = 0; i < impl.buckets.size(); ++i) {
    if (!impl.buckets[i].may_be_written()) continue;  // changing a master may need the disk
    impl.updates->change(i, [&] { impl.buckets[i].adopt_gathered(); });
  }
  model_->impl_->schedule->unhold();
}

const ShardedOptions& ShardedModel::options() const { return impl_->options; }
const Communicator& ShardedModel::communicator() const { return impl_->communicator; }
std::chrono::nanoseconds ShardedModel::exposed_wait() const { return impl_->sync->exposed_wait(); }

using parallel::NamedParameter;
using parallel::ShardedBucket;

// --- what it holds ---

void ShardedModel::Impl::add_parts(size_t index, const SetContent& set, std::vector<Part>& parts) const {
  const ShardedBucket& bucket = buckets[index];
  for (const parallel::OwnedRange& range :
       parallel::owned_ranges(bucket.layout(), items, place.ranks, place.rank)) {
    const NamedParameter& parameter = bucket.parameters()[range.slot];
    parts.push_back({parameter.name, bucket.shape(range.slot).vec(), range.first, {}});
    set(parts.back(), range.offset, range.count);
  }
}

ShardedModel::Memory ShardedModel::memory() const {
  Memory memory;
  const bool transient = impl_->has_transient_gradients();
  for (const ShardedBucket& bucket : impl_->buckets) {
    const auto bytes = static_cast<int64_t>(bucket.shard().nbytes());
    const bool is_host = !bucket.resident() && impl_->offloads_parameters();
    memory.parameters += bucket.resident() ? bytes * impl_->place.ranks : bytes;
    if (is_host) memory.host += bytes;
    if (bucket.has_separate_master()) memory.master += static_cast<int64_t>(bucket.master().nbytes());
    if (transient || impl_->gradients->are_on_host()) memory.gradients += bytes;
  }
  memory.optimizer = parallel::state_bytes(impl_->optimizer);
  if (impl_->offloads_optimizer()) {
    memory.buffers = impl_->updates->buffer_bytes();
    (impl_->is_nvme() ? memory.nvme : memory.host) += memory.master + memory.optimizer;
    memory.host += memory.gradients + memory.buffers;
  }
  (transient ? memory.buffers : memory.gradients) += impl_->sync->gradient_bytes();
  memory.buffers += impl_->gatherer->bytes();
  return memory;
}

std::vector<ShardedModel::Part> ShardedModel::gradient_parts() const {
  std::vector<Part> parts;
  for (size_t i = 0; i < impl_->buckets.size(); ++i) {
    if (!impl_->gradients->has(i)) continue;
    const at::Tensor flat = impl_->gradients->of(i);
    impl_->add_parts(i, within(flat), parts);
  }
  return parts;
}

std::vector<ShardedModel::Part> ShardedModel::parameter_parts() const {
  std::vector<Part> parts;
  for (size_t i = 0; i < impl_->buckets.size(); ++i) {
    impl_->add_parts(i, within(impl_->buckets[i].shard()), parts);
  }
  return parts;
}

std::vector<ShardedModel::Part> ShardedModel::master_parts(Content content) const {
  std::vector<Part> parts;
  for (size_t i = 0; i < impl_->buckets.size(); ++i) {
    const auto set = [&](Part& part, int64_t offset, int64_t count) {
      parallel::set_content(part, *impl_->updates, i, impl_->buckets[i].master(), offset, count, content);
    };
    impl_->add_parts(i, set, parts);
  }
  return parts;
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
                     [](const ShardedBucket& bucket) { return bucket.is_master_wider(); });
}

void ShardedModel::load_parameters(const ReadParts& read, const ReadParts& read_masters) {
  const at::NoGradGuard no_grad;
  finish_step();
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
  const auto change = [this](size_t i, const auto& body) { impl_->updates->change(i, body); };
  for (size_t i = 0; i < impl_->buckets.size(); ++i) {
    change(i, [&] { impl_->buckets[i].update_master(); });
  }
  // One after the other: masters in a file are in memory one bucket at a time.
  for (size_t i = 0; read_masters && has_masters() && i < impl_->buckets.size(); ++i) {
    change(i, [&] {
      std::vector<Part> parts;
      impl_->add_parts(i, within(impl_->buckets[i].master()), parts);
      fill(parts, read_masters);
    });
  }
  for (size_t i = 0; i < impl_->buckets.size(); ++i) impl_->gatherer->publish(i);
  finish_step();
}

ShardedModel::OptimizerParts ShardedModel::optimizer_parts(Content content) const {
  return parallel::save_state(impl_->state_view(), content);
}

void ShardedModel::load_optimizer(const std::string& values, const ReadParts& read) {
  parallel::load_state(impl_->state_view(), values, read);
}

}  // namespace lockstep
