#include "cluster/amd_gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "base/file.h"
#include "base/folder.h"
#include "base/number.h"
#include "cluster/devices.h"

namespace lockstep::cluster {
namespace fs = std::filesystem;
namespace {

// The lines "name number" of a node's properties; unique_id needs all 64 bits. Empty: the file cannot be
// read, as that of a GPU which the control group of this process does not allow.
std::map<std::string, uint64_t> read_properties(const fs::path& node) {
  std::map<std::string, uint64_t> properties;
  std::istringstream lines(base::read_whole_file(node / "properties").value_or(""));
  for (std::string name, text; lines >> name >> text;) {
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) properties[name] = number;
  }
  return properties;
}

uint64_t property(const std::map<std::string, uint64_t>& properties, const std::string& name) {
  const auto found = properties.find(name);
  return found == properties.end() ? 0 : found->second;
}

// 90010 is gfx90a: the major number in decimal, the other two in hexadecimal.
std::string target_of(uint64_t version) {
  if (version == 0) return "";
  return fmt::format("gfx{}{:x}{:x}", version / 10000, version / 100 % 100, version % 100);
}

std::string trimmed_line(const fs::path& path) {
  std::string line = base::read_first_line(path).value_or("");
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  line.erase(std::find_if_not(line.rbegin(), line.rend(), is_space).base(), line.end());
  line.erase(line.begin(), std::find_if_not(line.begin(), line.end(), is_space));
  return line;
}

AmdGpu describe(const fs::path& node, const std::map<std::string, uint64_t>& properties,
                const fs::path& sysfs) {
  const fs::path device =
      sysfs / "class/drm" / fmt::format("renderD{}", property(properties, "drm_render_minor")) / "device";
  AmdGpu gpu;
  gpu.target = target_of(property(properties, "gfx_target_version"));
  gpu.name = trimmed_line(device / "product_name");
  if (gpu.name.empty()) gpu.name = trimmed_line(node / "name");
  if (const uint64_t id = property(properties, "unique_id"); id != 0)
    gpu.uuid = fmt::format("GPU-{:016x}", id);
  // sysfs shows -1 on machines with one NUMA node.
  const auto numa_node = base::parse_integer(trimmed_line(device / "numa_node"));
  gpu.numa_node = static_cast<int>(std::clamp<int64_t>(numa_node.value_or(0), 0, 1 << 20));
  return gpu;
}

std::vector<AmdGpu> all_amd_gpus(const fs::path& sysfs) {
  std::vector<std::pair<int64_t, fs::path>> nodes;
  std::error_code error;
  for (const base::FolderEntry& entry : base::list_folder(sysfs / "class/kfd/kfd/topology/nodes", error)) {
    if (const auto number = base::parse_integer(entry.path().filename().string()))
      nodes.emplace_back(*number, entry.path());
  }
  std::sort(nodes.begin(), nodes.end());
  std::vector<AmdGpu> gpus;
  for (const auto& [number, node] : nodes) {
    const std::map<std::string, uint64_t> properties = read_properties(node);
    // CPUs are nodes too, and have no SIMD units of a GPU. A node with both is a processor with graphics for
    // a screen, which ROCm does not support.
    if (property(properties, "simd_count") > 0 && property(properties, "cpu_cores_count") == 0)
      gpus.push_back(describe(node, properties, sysfs));
  }
  return gpus;
}

std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

// The place of the GPU that an entry names by number or by the beginning of its UUID. nullopt: no GPU, or
// several.
std::optional<size_t> find_gpu(const std::vector<AmdGpu>& gpus, const std::string& entry) {
  if (const std::optional<int64_t> index = base::parse_integer(entry)) {
    if (*index >= static_cast<int64_t>(gpus.size())) return std::nullopt;
    return static_cast<size_t>(*index);
  }
  std::optional<size_t> found;
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (!upper_case(gpus[i].uuid).starts_with(upper_case(entry))) continue;
    if (found) return std::nullopt;
    found = i;
  }
  return found;
}

std::vector<AmdGpu> selected_gpus(const std::vector<AmdGpu>& gpus, const VisibleDevices& visible) {
  if (!visible.restricted) return gpus;
  std::vector<AmdGpu> selected;
  std::vector<size_t> taken;
  for (const std::string& entry : visible.devices) {
    const std::optional<size_t> found = find_gpu(gpus, entry);
    // A GPU that is named by its number and by its UUID ends the list too.
    if (!found || std::find(taken.begin(), taken.end(), *found) != taken.end()) break;
    taken.push_back(*found);
    selected.push_back(gpus[*found]);
  }
  return selected;
}

}  // namespace

std::string AmdGpu::description() const {
  if (name.empty() || target.empty()) return name.empty() ? target : name;
  return fmt::format("{}, {}", name, target);
}

std::vector<AmdGpu> visible_amd_gpus(const base::Environment& environment, const std::string& sysfs) {
  const std::vector<AmdGpu> all = all_amd_gpus(sysfs);
  if (all.empty()) return {};
  const char* const runtime = "ROCR_VISIBLE_DEVICES";
  const std::vector<AmdGpu> left =
      selected_gpus(all, parse_visible_devices(environment.get(runtime), runtime));
  // HIP does not read GPU_DEVICE_ORDINAL, which Slurm may set to the same numbers: it is OpenCL's.
  const char* const variable =
      environment.has("HIP_VISIBLE_DEVICES") ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES";
  return selected_gpus(left, parse_visible_devices(environment.get(variable), variable));
}

std::string explain_amd_gpus(const base::Environment& environment, const std::string& sysfs,
                             const std::string& driver_folder) {
  std::error_code error;
  if (!base::list_folder(driver_folder, error).empty()) return "";
  const std::vector<AmdGpu> gpus = visible_amd_gpus(environment, sysfs);
  if (gpus.empty()) return "";
  const std::string first = gpus.front().description();
  return fmt::format(
      "{}{}, but {}",
      gpus.size() == 1 ? "an AMD GPU is visible" : fmt::format("{} AMD GPUs are visible", gpus.size()),
      first.empty() ? "" : fmt::format(" ({})", first), kNoRocm);
}

}  // namespace lockstep::cluster
