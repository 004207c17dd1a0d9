#include "cluster/variables.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <utility>

#include "base/number.h"

namespace lockstep::cluster {

void Variables::set_argument(const std::string& name, const std::string& label, int value) {
  environment_.set(name, std::to_string(value));
  labels_[name] = label;
}

bool Variables::has_any(const Names& names) const {
  return std::any_of(names.begin(), names.end(), [this](std::string_view name) { return has(name); });
}

std::string Variables::label(std::string_view name) const {
  const auto found = labels_.find(name);
  return found == labels_.end() ? std::string(name) : found->second;
}

std::optional<std::string> Variables::text(std::string_view name) const {
  std::optional<std::string> value = environment_.get(name);
  if (value && value->empty()) fail(fmt::format("{} is set but empty", label(name)), {name});
  return value;
}

std::optional<int> Variables::number(std::string_view name, int lowest, int highest) const {
  const std::optional<std::string> value = text(name);
  if (!value) return std::nullopt;
  const std::optional<int64_t> number = base::parse_integer(*value);
  if (!number || *number < lowest || *number > highest) {
    fail(fmt::format("{} must be a whole number from {} to {}", label(name), lowest, highest), {name});
  }
  return static_cast<int>(*number);
}

std::optional<uint16_t> Variables::port(std::string_view name) const {
  const std::optional<int> value = number(name, 1, 65535);
  if (!value) return std::nullopt;
  return static_cast<uint16_t>(*value);
}

std::string Variables::show(const Names& names) const {
  std::string result;
  for (const std::string_view name : names) {
    if (!result.empty()) result += ", ";
    const std::optional<std::string> value = environment_.get(name);
    result += value ? fmt::format("{}='{}'", label(name), *value) : fmt::format("{} unset", name);
  }
  return result;
}

void Variables::fail(std::string_view sentence, const Names& names) const {
  throw ConfigError("cluster", fmt::format("{}: {}", sentence, show(names)));
}

void check_rank_in_world(const RankMap& map, const Variables& variables, const Names& names) {
  if (map.rank >= map.world_size) variables.fail("the rank must be below the world size", names);
}

void check_ranks(const RankMap& map, const Variables& variables, const Names& names) {
  const auto require = [&](bool holds, std::string_view sentence) {
    if (!holds) variables.fail(sentence, names);
  };
  check_rank_in_world(map, variables, names);
  require(map.local_rank < map.local_world_size, "the local rank must be below the local world size");
  require(map.local_world_size <= map.world_size, "the local world size must not exceed the world size");
  // Local ranks follow the order of ranks, so there must be enough ranks below and above
  // this one for the node's other ranks.
  require(map.local_rank <= map.rank && map.local_world_size - map.local_rank <= map.world_size - map.rank,
          "the rank and the local rank contradict each other");
  if (map.num_nodes == 0) return;
  require(map.node_rank < map.num_nodes, "the node's rank must be below the number of nodes");
  require(map.num_nodes <= map.world_size, "there must not be more nodes than ranks");
  require((map.num_nodes == 1) == (map.local_world_size == map.world_size),
          "the number of nodes contradicts the local world size");
}

void check_repeated_variables(const RankMap& map, const Variables& variables, const Names& names) {
  const std::pair<std::string_view, int> repeated[] = {{"RANK", map.rank},
                                                       {"WORLD_SIZE", map.world_size},
                                                       {"LOCAL_RANK", map.local_rank},
                                                       {"LOCAL_WORLD_SIZE", map.local_world_size}};
  for (const auto& [name, expected] : repeated) {
    const std::optional<int> value = variables.number(name, 0, kMaxRanks);
    if (!value || *value == expected) continue;
    Names shown{name};
    shown.insert(shown.end(), names.begin(), names.end());
    variables.fail(fmt::format("{} contradicts {}, which says {}", variables.label(name),
                               to_string(map.launcher), expected),
                   shown);
  }
}

}  // namespace lockstep::cluster
