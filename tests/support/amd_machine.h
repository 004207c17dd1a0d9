#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace lockstep::test {

// Writes below `sysfs` what the kernel shows on a machine with one CPU and these AMD GPUs, MI250X dies with
// UUIDs GPU-8000000000000001 and so on, the first on NUMA node 0, the second on 1. Nodes of KFD are numbered
// from the CPU on; with twelve of them an order by text would be wrong.
inline void make_amd_machine(const std::filesystem::path& sysfs, int gpus) {
  const auto put = [&](const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories((sysfs / path).parent_path());
    std::ofstream(sysfs / path) << text << "\n";
  };
  const std::filesystem::path nodes = "class/kfd/kfd/topology/nodes";
  put(nodes / "0/properties", "cpu_cores_count 64\nsimd_count 0\nvendor_id 0");
  put(nodes / "0/name", "");
  for (int gpu = 0; gpu < gpus; ++gpu) {
    const std::filesystem::path node = nodes / std::to_string(gpu + 1);
    // Of 64 bits: more than a signed number holds.
    const std::string id = std::to_string((uint64_t{1} << 63) + static_cast<uint64_t>(gpu) + 1);
    const std::string minor = std::to_string(128 + gpu);
    put(node / "properties",
        "cpu_cores_count 0\nsimd_count 440\ngfx_target_version 90010\nvendor_id 4098\n"
        "drm_render_minor " +
            minor + "\nunique_id " + id);
    put(node / "name", "aldebaran");
    const std::filesystem::path device = std::filesystem::path("class/drm") / ("renderD" + minor) / "device";
    put(device / "product_name", "AMD Instinct MI250X ");
    put(device / "numa_node", std::to_string(gpu));
  }
}

}  // namespace lockstep::test
