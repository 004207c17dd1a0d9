#include "cluster/devices.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/folder.h"
#include "base/number.h"
#include "cluster/amd_gpus.h"
#include "cluster/variables.h"

namespace lockstep::cluster {
namespace {

constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";

bool is_uuid(std::string_view text) { return text.substr(0, 4) == "GPU-" || text.substr(0, 4) == "MIG-"; }

[[noreturn]] void fail(std::string_view variable, std::string_view sentence, const std::string& value) {
  throw ConfigError("cluster", fmt::format("{} {}: {}='{}'", variable, sentence, variable, value));
}

std::string shown(const base::Environment& environment) {
  const std::optional<std::string> value = environment.get(kVariable);
  return value ? fmt::format("{}='{}'", kVariable, *value) : fmt::format("{} unset", kVariable);
}

}  // namespace

VisibleDevices parse_visible_devices(const std::optional<std::string>& value, std::string_view variable) {
  VisibleDevices result;
  if (!value) return result;
  result.restricted = true;
  if (value->empty() || *value == "NoDevFiles") return result;
  std::string text = *value;
  // ROCm's runtime allows "0, 1"; CUDA and HIP do not.
  if (variable == "ROCR_VISIBLE_DEVICES") std::erase(text, ' ');
  std::string_view rest = text;
  while (true) {
    const size_t comma = rest.find(',');
    const std::string entry(rest.substr(0, comma));
    const std::optional<int64_t> index = base::parse_integer(entry);
    if (index && *index < 0) return result;
    if (!index && !is_uuid(entry))
      fail(variable, fmt::format("holds '{}', which is neither an index nor a UUID", entry), *value);
    const std::string name = index ? std::to_string(*index) : entry;
    if (std::find(result.devices.begin(), result.devices.end(), name) != result.devices.end()) {
      fail(variable, fmt::format("names device {} twice", name), *value);
    }
    result.devices.push_back(name);
    if (comma == std::string_view::npos) return result;
    rest.remove_prefix(comma + 1);
  }
}

std::optional<int> count_listed_gpus(const base::Environment& environment) {
  std::optional<int> least;
  for (const char* const variable : {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}) {
    const VisibleDevices visible = parse_visible_devices(environment.get(variable), variable);
    if (!visible.restricted) continue;
    const int count = static_cast<int>(visible.devices.size());
    least = least ? std::min(*least, count) : count;
  }
  return least;
}

int count_visible_gpus(const base::Environment& environment, const std::string& driver_folder,
                       const std::string& sysfs) {
  const VisibleDevices visible = parse_visible_devices(environment.get("CUDA_VISIBLE_DEVICES"));
  std::error_code error;
  const size_t present = base::list_folder(driver_folder, error).size();
  if (present == 0) return static_cast<int>(visible_amd_gpus(environment, sysfs).size());
  return static_cast<int>(visible.restricted ? std::min(present, visible.devices.size()) : present);
}

int choose_device(const RankMap& map, int visible_count, const base::Environment& environment) {
  const std::string values =
      fmt::format("{}, LOCAL_RANK={}, LOCAL_WORLD_SIZE={}, {} visible", shown(environment), map.local_rank,
                  map.local_world_size, visible_count);
  if (visible_count < 1) throw ConfigError("cluster", fmt::format("no GPU is visible: {}", values));
  // Of the GPUs of the node the launcher shows this rank its own.
  if (visible_count == 1) return 0;
  const Variables variables(environment);
  if (const auto said = variables.count("GPUS_PER_NODE"); said && *said != visible_count) {
    throw ConfigError(
        "cluster", fmt::format("GPUS_PER_NODE is {}, and {} GPUs are visible to this rank: count them with "
                               "SLURM_GPUS_ON_NODE, or unset GPUS_PER_NODE: {}",
                               *said, visible_count, values));
  }
  if (map.local_world_size > visible_count) {
    throw ConfigError("cluster", fmt::format("two ranks would share one device: {}", values));
  }
  return map.local_rank;
}

void check_distinct_devices(const std::vector<DeviceOfRank>& table) {
  std::map<std::pair<std::string, std::string>, int> owners;
  for (const DeviceOfRank& entry : table) {
    if (entry.device_uuid.empty()) continue;
    const auto [owner, is_new] = owners.try_emplace({entry.host, entry.device_uuid}, entry.rank);
    if (is_new) continue;
    throw ConfigError(
        "cluster",
        fmt::format("two ranks share one device, start one rank a GPU or set LOCAL_RANK: ranks {} and {} "
                    "on {}, device {}",
                    owner->second, entry.rank, entry.host, entry.device_uuid));
  }
}

}  // namespace lockstep::cluster
