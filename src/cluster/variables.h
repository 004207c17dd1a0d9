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

// The variables of a launcher, read with their types. A variable that is set but empty or
// out of range is a ConfigError that shows NAME='value': a broken variable is never treated
// as unset.
class Variables {
 public:
  explicit Variables(const base::Environment& environment) : environment_(environment) {}

  // An argument of the user overrides the variable; errors show it as `label`.
  void set_argument(const std::string& name, const std::string& label, int value);

  bool has(std::string_view name) const { return environment_.has(name); }
  bool has_any(const Names& names) const;

  std::optional<std::string> text(std::string_view name) const;
  std::optional<int> number(std::string_view name, int lowest, int highest) const;
  std::optional<int> rank(std::string_view name) const { return number(name, 0, kMaxRanks - 1); }
  std::optional<int> count(std::string_view name) const { return number(name, 1, kMaxRanks); }
  std::optional<uint16_t> port(std::string_view name) const;

  // The name to show to the user: the variable's, or the label of the argument.
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

// Checks for every job; ConfigError shows `names`.

// The rank is below the world size.
void check_rank_in_world(const RankMap& map, const Variables& variables, const Names& names);

// Also: the local rank is below the local world size, and the node's ranks fit into
// the world.
void check_ranks(const RankMap& map, const Variables& variables, const Names& names);

// torchrun's variables, which a script may set beside another launcher, must agree with the
// map.
void check_repeated_variables(const RankMap& map, const Variables& variables, const Names& names);

}  // namespace lockstep::cluster
