#include "parallel/shard_optimizer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "base/log.h"
#include "optim/flat_step.h"
#include "optim/optimizer_state.h"
#include "parallel/bucket_plan.h"

namespace lockstep::parallel {

namespace {

using torch::optim::Optimizer;

// Each element depends on its own gradients alone.
constexpr std::array<std::string_view, 7> kElementwise = {"SGD",     "Adam",     "AdamW", "Adagrad",
                                                          "RMSprop", "Adadelta", "Lion"};
// These need whole parameters, or all of them together.
constexpr std::array<std::string_view, 3> kWhole = {"LBFGS", "AdamLbfgs", "Lamb"};

template <size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Only Adagrad makes its state before the first gradient.
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
                    "the optimizer has a state already: construct a new one, and load the state of a "
                    "checkpoint after sharding");
}

namespace {

// The tails, in this rank's shard, of the parameters of a bucket.
std::vector<optim::FlatSegment> tails_in_shard(const BucketLayout& layout,
                                               const std::vector<BucketItem>& items, Place place) {
  std::vector<optim::FlatSegment> tails;
  for (const OwnedRange& range : owned_ranges(layout, items, place.ranks, place.rank)) {
    const int64_t end = range.first + range.count;
    const int64_t begin =
        std::max(range.first, optim::before_tail(items[layout.slots[range.slot].item].numel));
    if (begin >= end) continue;
    const int64_t offset = range.offset - range.first;
    tails.push_back({static_cast<size_t>(offset + begin), static_cast<size_t>(offset + end)});
  }
  return tails;
}

}  // namespace

void hand_over(Optimizer& optimizer, const std::vector<ShardedBucket>& buckets,
               const std::vector<int>& group_of, const std::vector<BucketItem>& items, Place place) {
  if (auto* const tailed = dynamic_cast<optim::StepsTails*>(&optimizer)) {
    tailed->clear_tails();
    for (const ShardedBucket& bucket : buckets) {
      tailed->set_tails(bucket.master(), tails_in_shard(bucket.layout(), items, place));
    }
  }
  for (auto& group : optimizer.param_groups()) group.params().clear();
  for (size_t i = 0; i < buckets.size(); ++i) {
    optimizer.param_groups()[static_cast<size_t>(group_of[i])].params().push_back(buckets[i].master());
  }
  optimizer.state().clear();
  if (optimizer_class(optimizer) == "Adagrad") make_adagrad_state(optimizer);
}

// All other masters have no gradient meanwhile, and optimizers skip those. So the conversion needs
// memory for one bucket only, and its parameters are gathered while the next bucket is updated.
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

// --- bytes of state ---

namespace {

constexpr int64_t kProbeElements = 64;

// Removes an optimizer's parameters and state during its lifetime.
class WithoutParameters {
 public:
  explicit WithoutParameters(Optimizer& optimizer)
      : optimizer_(optimizer), state_(std::move(optimizer.state())) {
    optimizer_.state().clear();
    for (auto& group : optimizer_.param_groups()) {
      parameters_.push_back(std::move(group.params()));
      group.params().clear();
    }
  }
  ~WithoutParameters() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      optimizer_.param_groups()[i].params() = std::move(parameters_[i]);
    }
    optimizer_.state() = std::move(state_);
  }
  WithoutParameters(const WithoutParameters&) = delete;
  WithoutParameters& operator=(const WithoutParameters&) = delete;

 private:
  Optimizer& optimizer_;
  std::remove_reference_t<decltype(std::declval<Optimizer&>().state())> state_;
  std::vector<std::vector<at::Tensor>> parameters_;
};

}  // namespace

int64_t StateBytes::measure(int group, c10::ScalarType dtype) const {
  const WithoutParameters empty(optimizer_);
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

// --- updates ---

ShardOptimizer::ShardOptimizer(torch::optim::Optimizer& optimizer, std::vector<ShardedBucket>& buckets,
                               std::vector<int> group_of, CopyLane& lane, HostMemory* staging,
                               std::unique_ptr<NvmeStates> states)
    : optimizer_(optimizer),
      buckets_(buckets),
      group_of_(std::move(group_of)),
      lane_(lane),
      is_offloaded_(staging != nullptr),
      states_(std::move(states)) {
  // Some optimizers have a state before their first step.
  for (size_t i = 0; states_ && i < buckets_.size(); ++i) {
    if (!optim::state_tensors(optimizer_, buckets_[i].master()).empty()) put_back(i);
  }
  int64_t bytes = 0;
  for (const ShardedBucket& bucket : buckets_) {
    const bool crosses = bucket.has_separate_master() && !bucket.is_master_on_device();
    if (crosses) bytes = std::max(bytes, static_cast<int64_t>(bucket.shard().nbytes()));
  }
  if (bytes == 0 || !is_offloaded_) return;
  for (Stage& stage : stages_) stage.bytes = staging->allocate(bytes, at::kByte);
}

void ShardOptimizer::begin_step(const at::Tensor& factor) {
  factor_ = factor;
  host_factor_ = is_offloaded_ && factor.defined() ? factor.item<float>() : 1;
  lane_.finish();
  if (states_) states_->finish_writes();
}

void ShardOptimizer::step(size_t index, const at::Tensor& gradient, std::optional<size_t> next) {
  if (!is_offloaded_) {
    step_one(optimizer_, buckets_[index].master(), gradient, factor_);
    buckets_[index].update_shard();
    return;
  }
  if (states_) {
    states_->open(index);
    if (next) states_->prefetch(*next);
  }
  step_on_host(index, gradient);
  if (states_) put_back(index);
}

void ShardOptimizer::put_back(size_t index) {
  std::vector<at::Tensor> tensors = optim::state_tensors(optimizer_, buckets_[index].master());
  tensors.insert(tensors.begin(), buckets_[index].master());
  states_->store(index, tensors);
}

void ShardOptimizer::change(size_t index, const std::function<void()>& body) {
  if (states_) states_->open(index);
  body();
  if (states_) put_back(index);
}

at::Tensor ShardOptimizer::readable(size_t index, const at::Tensor& tensor, int64_t first,
                                    int64_t count) const {
  return states_ ? states_->copy_of(index, tensor, first, count) : tensor.narrow(0, first, count);
}

void ShardOptimizer::take_state(size_t index) {
  if (states_) put_back(index);
}

int64_t ShardOptimizer::buffer_bytes() const {
  int64_t bytes = states_ ? states_->buffer_bytes() : 0;
  for (const Stage& stage : stages_) {
    if (stage.bytes.defined()) bytes += static_cast<int64_t>(stage.bytes.nbytes());
  }
  return bytes;
}

at::Tensor ShardOptimizer::staging_for(const ShardedBucket& bucket) {
  Stage& stage = stages_[next_stage_];
  stage.copy.wait();
  const at::Tensor& shard = bucket.shard();
  return stage.bytes.narrow(0, 0, static_cast<int64_t>(shard.nbytes())).view(shard.scalar_type());
}

void ShardOptimizer::step_on_host(size_t index, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  ShardedBucket& bucket = buckets_[index];
  at::Tensor copy;
  if (bucket.has_separate_master())
    copy = bucket.is_master_on_device() ? bucket.shard() : staging_for(bucket);
  const auto& options = optimizer_.param_groups()[static_cast<size_t>(group_of_[index])].options();
  if (!optim::step_one_flat(optimizer_, options, bucket.master(), gradient,
                            {.gradient_factor = host_factor_, .copy = copy})) {
    step_one(optimizer_, bucket.master(), gradient, factor_);
    if (copy.defined()) copy.copy_(bucket.master());
  }
  if (!copy.defined() || bucket.is_master_on_device()) return;
  Stage& stage = stages_[next_stage_];
  stage.copy = lane_.copy(bucket.shard(), copy);
  stage.copy.wait_on_device();
  next_stage_ = (next_stage_ + 1) % stages_.size();
}

// --- state by parameters ---

namespace {

// Masters under the names that the optimizer's state has for buckets: their indices.
NamedTensors named_masters(const std::vector<ShardedBucket>& buckets) {
  NamedTensors masters;
  for (const ShardedBucket& bucket : buckets) {
    masters.emplace_back(std::to_string(masters.size()), bucket.master());
  }
  return masters;
}

std::vector<OwnedRange> ranges_of(const StateView& view, const ShardedBucket& bucket) {
  return owned_ranges(bucket.layout(), view.items, view.place.ranks, view.place.rank);
}

void check_groups(const StateView& view, const Json& groups) {
  if (groups.size() != view.group_names.size()) {
    throw ConfigError("shard", fmt::format("the saved optimizer has another number of parameter groups: {} "
                                           "there, {} here",
                                           groups.size(), view.group_names.size()));
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto saved = groups[i].at("parameters").get<std::set<std::string>>();
    for (const std::string& name : view.group_names[i]) {
      if (saved.count(name) > 0) continue;
      throw ConfigError("shard", fmt::format("a parameter is in group {} here, and not in that group of the "
                                             "saved optimizer: {}",
                                             i, name));
    }
  }
}

// The values that all parameters of a bucket share; null: none has a state.
Json common_state(const ShardedBucket& bucket, const Json& saved) {
  Json common;
  std::string of;
  std::vector<std::string> without;
  for (const NamedParameter& parameter : bucket.parameters()) {
    const Json* const found = saved.find(parameter.name);
    if (found == nullptr) {
      without.push_back(parameter.name);
    } else if (common.is_null()) {
      common = *found;
      of = parameter.name;
    } else if (*found != common) {
      throw ConfigError("shard",
                        fmt::format("the saved optimizer has updated {} and {} differently often, and "
                                    "they share a bucket here: {} and {}",
                                    of, parameter.name, common.dump(), found->dump()));
    }
  }
  if (!common.is_null() && !without.empty()) {
    base::log_warning("shard",
                      "the saved optimizer knows nothing of these parameters, which start at zero: {}",
                      fmt::join(without, ", "));
  }
  return common;
}

// Adds the state tensors of the bucket's shard under own_name, and to `wanted` the parts to read into
// them.
void add_bucket(const StateView& view, const ShardedBucket& bucket, const std::string& own_name,
                const Json& state, const Json& saved, NamedTensors& tensors,
                std::vector<ShardedModel::Part>& wanted) {
  for (const Json& field : state.at("tensors")) {
    const std::string suffix = "/" + field.get<std::string>();
    const at::Tensor part = at::zeros_like(bucket.master(), at::kCPU);
    for (const OwnedRange& range : ranges_of(view, bucket)) {
      const std::string& name = bucket.parameters()[range.slot].name;
      if (!saved.contains(name)) continue;
      wanted.push_back({name + suffix, bucket.shape(range.slot).vec(), range.first,
                        part.narrow(0, range.offset, range.count)});
    }
    tensors.emplace_back(own_name + suffix, part);
  }
}

// States in a file are in memory one bucket at a time.
void load_one_by_one(const StateView& view, const Json& saved, const ShardedModel::ReadParts& read) {
  for (size_t i = 0; i < view.buckets.size(); ++i) {
    const ShardedBucket& bucket = view.buckets[i];
    const Json state = common_state(bucket, saved);
    if (!state.is_null()) {
      NamedTensors tensors;
      std::vector<ShardedModel::Part> wanted;
      const std::string name = std::to_string(i);
      add_bucket(view, bucket, name, state, saved, tensors, wanted);
      read(wanted);
      optim::load_state_of(view.optimizer, bucket.master(), name, state, tensors);
    }
    view.home.take_state(i);
  }
}

}  // namespace

void set_content(ShardedModel::Part& part, const ShardOptimizer& home, size_t bucket,
                 const at::Tensor& tensor, int64_t offset, int64_t count, ShardedModel::Content content) {
  if (content == ShardedModel::Content::kNow || home.is_in_memory()) {
    part.data = home.readable(bucket, tensor, offset, count);
    return;
  }
  part.data = at::empty({count}, at::TensorOptions(at::kMeta).dtype(tensor.scalar_type()));
  part.read = [&home, bucket, tensor, offset, count] { return home.readable(bucket, tensor, offset, count); };
}

ShardedModel::OptimizerParts save_state(const StateView& view, ShardedModel::Content content) {
  const OptimizerState own = optimizer_state(view.optimizer, named_masters(view.buckets));
  Json values = Json::parse(own.values);
  ShardedModel::OptimizerParts result;
  Json states = Json::object();
  for (size_t i = 0; i < view.buckets.size(); ++i) {
    const Json* const found = values.at("state").find(std::to_string(i));
    if (found == nullptr) continue;
    for (const NamedParameter& parameter : view.buckets[i].parameters()) states[parameter.name] = *found;
  }
  for (const auto& [name, tensor] : own.tensors) {
    const size_t slash = name.find('/');
    const size_t index = std::stoul(name.substr(0, slash));
    const ShardedBucket& bucket = view.buckets[index];
    for (const OwnedRange& range : ranges_of(view, bucket)) {
      const NamedParameter& parameter = bucket.parameters()[range.slot];
      ShardedModel::Part& part = result.parts.emplace_back(ShardedModel::Part{
          parameter.name + name.substr(slash), bucket.shape(range.slot).vec(), range.first, {}});
      set_content(part, view.home, index, tensor, range.offset, range.count, content);
    }
  }
  values["state"] = std::move(states);
  for (size_t i = 0; i < view.group_names.size(); ++i)
    values["groups"][i]["parameters"] = view.group_names[i];
  result.values = values.dump();
  return result;
}

void load_state(const StateView& view, const std::string& values, const ShardedModel::ReadParts& read) {
  const Json saved = Json::parse(values);
  check_groups(view, saved.at("groups"));
  // The saved state by buckets, as the optimizer itself would have saved it.
  Json own = Json::parse(optimizer_state(view.optimizer, named_masters(view.buckets)).values);
  for (size_t i = 0; i < view.group_names.size(); ++i) {
    own["groups"][i]["options"] = saved.at("groups")[i].at("options");
  }
  own["class"] = saved.at("class");
  own["state"] = Json::object();
  if (!view.home.is_in_memory()) {
    load_optimizer_state(view.optimizer, named_masters(view.buckets), {{}, own.dump()});
    load_one_by_one(view, saved.at("state"), read);
    return;
  }
  NamedTensors tensors;
  std::vector<ShardedModel::Part> wanted;
  for (size_t i = 0; i < view.buckets.size(); ++i) {
    const ShardedBucket& bucket = view.buckets[i];
    const Json state = common_state(bucket, saved.at("state"));
    if (state.is_null()) continue;
    const std::string own_name = std::to_string(i);
    add_bucket(view, bucket, own_name, state, saved.at("state"), tensors, wanted);
    own["state"][own_name] = state;
  }
  read(wanted);
  load_optimizer_state(view.optimizer, named_masters(view.buckets), {std::move(tensors), own.dump()});
}

}  // namespace lockstep::parallel
