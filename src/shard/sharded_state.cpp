#include "shard/sharded_state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/optimizer_state.h>

#include <lockstep/json.h>
#include <algorithm>
#include <set>

#include "base/log.h"
#include "optim/state_fields.h"
#include "shard/shard_plan.h"

namespace lockstep::shard {

namespace {

// What the optimizer's state calls a bucket.
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

// The numbers that all parameters of a bucket share; null where none has a state.
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

// Tensors of the bucket's parts, under own_name, and in `wanted` what belongs into them.
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

// States that live in a file are in memory one bucket at a time.
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

void set_content(ShardedModel::Part& part, const PartOptimizer& home, size_t bucket, const at::Tensor& tensor,
                 int64_t offset, int64_t count, ShardedModel::Content content) {
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
  // The optimizer's own state, as it would have saved it by buckets.
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

}  // namespace lockstep::shard
