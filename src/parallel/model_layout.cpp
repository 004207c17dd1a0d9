#include "parallel/model_layout.h"

#include <torch/nn/module.h>

#include <map>

#include "parallel/bucket_plan.h"

namespace lockstep::parallel {

size_t UnitMap::number_of(Unit* unit, size_t parent) {
  const auto [found, is_new] = index_.try_emplace(unit, units_.size() + 1);
  if (is_new) {
    units_.push_back(unit);
    parents_.push_back(parent);
  }
  return found->second;
}

void UnitMap::give(const at::Tensor& parameter, size_t unit) {
  const auto [found, is_new] = owner_.try_emplace(parameter.unsafeGetTensorImpl(), unit);
  if (!is_new && found->second != unit) found->second = 0;
}

void UnitMap::visit(torch::nn::Module& module, size_t unit) {
  if (auto* own = dynamic_cast<Unit*>(&module)) unit = number_of(own, unit);
  if (auto* source = dynamic_cast<UnitSource*>(&module)) {
    for (const UnitSource::Owned& owned : source->units()) {
      const size_t number = number_of(owned.unit, unit);
      for (const at::Tensor& parameter : owned.parameters) {
        give(parameter, number);
        from_sources_.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    if (from_sources_.count(parameter.unsafeGetTensorImpl()) == 0) give(parameter, unit);
  }
  for (const auto& child : module.children()) visit(*child, unit);
}

namespace {

struct Family {
  int group = 0;
  size_t unit = 0;
  bool resident = true;
  auto operator<=>(const Family&) const = default;
};

}  // namespace

ModelLayout lay_out(const std::vector<LayoutParameter>& parameters, const ZeroOptions& options, int ranks) {
  ModelLayout result;
  std::map<Family, int> families;
  std::vector<Family> by_number;
  int64_t persistent = 0;
  for (const LayoutParameter& parameter : parameters) {
    const int64_t numel = parameter.item.numel;
    const bool is_small =
        numel < options.persistence_threshold && numel <= options.persistence_limit - persistent;
    if (is_small) persistent += numel;
    const bool resident = options.stage < 3 || is_small;
    const Family family{parameter.group, resident ? 0 : parameter.unit, resident};
    const auto [found, is_new] = families.try_emplace(family, static_cast<int>(by_number.size()));
    if (is_new) by_number.push_back(family);
    result.items.push_back(parameter.item);
    result.items.back().family = found->second;
  }
  for (BucketLayout& layout : plan_shards(result.items, options.bucket_cap_bytes, ranks)) {
    const Family& family = by_number[static_cast<size_t>(layout.family)];
    result.buckets.push_back({std::move(layout), family.group, family.unit, family.resident});
  }
  return result;
}

std::vector<UnitBuckets> ModelLayout::by_unit(size_t num_units) const {
  std::vector<UnitBuckets> units(num_units);
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].resident) continue;
    units[buckets[i].unit].buckets.push_back(i);
    units[buckets[i].unit].elements += buckets[i].layout.numel;
  }
  return units;
}

std::vector<std::vector<size_t>> ModelLayout::resident_by_unit(const std::vector<LayoutParameter>& parameters,
                                                               size_t num_units) const {
  std::vector<std::vector<size_t>> units(num_units);
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!buckets[i].resident) continue;
    for (const BucketSlot& slot : buckets[i].layout.slots) {
      std::vector<size_t>& own = units[parameters[slot.item].unit];
      if (own.empty() || own.back() != i) own.push_back(i);
    }
  }
  return units;
}

}  // namespace lockstep::parallel
