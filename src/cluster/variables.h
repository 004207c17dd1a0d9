#pragma once

#include <lockstep/rank_map.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.h"

namespace lockstep::cluster {

inline constexpr int kMaxRanks = 1 << 20;

using Names = std::vector<std::string_view>;

// The variables of a launcher, read with their types. A variable that is set but
// empty or out of range is a ConfigError that shows NAME='value': nothing that is
// present is passed over as if it were absent.
class Variables {
 public:
  explicit Variables(const base::Environment& environment) : environment_(environment) {}

  // An argument of the user stands above the variable and is shown as `label`.
  void set_argument(const std::string& name, const std::string& label, int value);

  bool has(std::string_view name) const { return environment_.has(name); }
  bool has_any(const Names& names) const;

  std::optional<std::string> text(std::string_view name) const;
  std::optional<int> number(std::string_view name, int lowest, int highest) const;
  std::optional<int> rank(std::string_view name) const { return number(name, 0, kMaxRanks - 1); }
  std::optional<int> count(std::string_view name) const { return number(name, 1, kMaxRanks); }
  std::optional<uint16_t> port(std::string_view name) const;

  // The name that the user knows it by.
  std::string label(std::string_view name) const;
  // "RANK='0', WORLD_SIZE unset"
  std::string show(const Names& names) const;
  // ConfigError "[cluster] sentence: " and these names with their values.
  [[noreturn]] void fail(std::string_view sentence, const Names& names) const;

  template <typename T>
  T require(std::optional<T> value, std::string_view missing, const Names& names) const {
    if (!value) fail(std::string(missing) + " is missing", names);
    return *std::move(value);
  }

 private:
  base::Environment environment_;
  std::map<std::string, std::string, std::less<>> labels_;
};

// The checks that hold in every job; ConfigError shows `names`.

// The rank is below the world size.
void check_rank_in_world(const RankMap& map, const Variables& variables, const Names& names);

// Also: the local rank is below the local world size, and the node's ranks fit into
// the world.
void check_ranks(const RankMap& map, const Variables& variables, const Names& names);

// The torchrun-style variables that a script may have set beside another launcher
// say what the map says.
void check_repeated_variables(const RankMap& map, const Variables& variables, const Names& names);

}  // namespace lockstep::cluster
