#include "train/device.h"

#include <dlfcn.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "base/environment.h"
#include "base/log.h"
#include "cluster/amd_gpus.h"
#include "cluster/devices.h"
#include "comm/plugin.h"
#include "track/gpu_monitor.h"

namespace lockstep::train {
namespace {

// Skips loading CUDA if no driver is installed: loading takes a second.
bool has_driver() {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return false;
  ::dlclose(driver);
  return true;
}

// Describes the GPUs that NVIDIA's driver shows this process; "": none.
std::string visible_gpus() {
  std::string ignored;
  const std::unique_ptr<track::Nvml> nvml = track::Nvml::load(ignored);
  const std::vector<std::string> names = nvml ? nvml->names() : std::vector<std::string>();
  size_t count = names.size();
  try {
    const cluster::VisibleDevices visible =
        cluster::parse_visible_devices(base::Environment::of_process().get("CUDA_VISIBLE_DEVICES"));
    if (visible.restricted) count = std::min(count, visible.devices.size());
  } catch (const ConfigError&) {
    return "";  // CUDA sees none either
  }
  if (count == 0) return "";
  return count == 1 ? fmt::format("an NVIDIA GPU is visible ({})", names[0])
                    : fmt::format("{} NVIDIA GPUs are visible ({})", count, names[0]);
}

void report_unused_amd_gpus() {
  try {
    const std::string gpus = cluster::explain_amd_gpus(base::Environment::of_process());
    if (gpus.empty()) return;
    base::log_warning(
        "launch",
        "{}, so the ranks use the CPU. To choose the CPU without this warning: set compute_setup "
        "to cpu",
        gpus);
  } catch (const ConfigError&) {
    // ROCm sees none either.
  }
}

// For compute_setup auto: warns about GPUs that this machine has and this build cannot use, once for
// each job. problem: why CUDA does not work; "": it does, and has no GPU.
void report_unused_gpus(const RankMap& map, const std::string& problem) {
  if (map.rank != 0) return;
  const std::string gpus = visible_gpus();
  if (gpus.empty()) {
    report_unused_amd_gpus();
  } else if (problem.empty()) {
    return;
  } else if (!comm::plugin_exists("cuda")) {
    base::log_warning("launch",
                      "{}, but this build has no CUDA library (liblockstep_cuda.so), so the ranks use the "
                      "CPU. To use GPUs: {}",
                      gpus, comm::kBuildCuda);
  } else {
    base::log_warning("launch", "{}, but the ranks use the CPU: {}", gpus, problem);
  }
}

bool wants_gpu(const RankMap& map, const std::string& compute_setup) {
  if (compute_setup == "gpu") return true;
  if (compute_setup == "cpu") return false;
  std::string problem;
  try {
    if (!has_driver()) {
      problem = "the CUDA driver's libcuda.so.1 does not load";
    } else if (!comm::list_cuda_devices().empty()) {
      return true;
    }
  } catch (const ConfigError& error) {
    problem = error.what();
  }
  report_unused_gpus(map, problem);
  return false;
}

// For compute_setup gpu: with AMD's GPUs only, neither NVIDIA's driver nor the CUDA library would help.
void refuse_amd_gpus() {
  const std::string gpus = cluster::explain_amd_gpus(base::Environment::of_process());
  if (gpus.empty() || !visible_gpus().empty()) return;
  throw ConfigError("launch", fmt::format("compute_setup is gpu, and {}: set compute_setup to cpu", gpus));
}

}  // namespace

c10::Device choose_device(const RankMap& map, const std::string& compute_setup) {
  if (!wants_gpu(map, compute_setup)) return c10::Device(c10::DeviceType::CPU);
  if (compute_setup == "gpu") refuse_amd_gpus();
  if (!has_driver()) {
    throw ConfigError(
        "launch",
        "compute_setup is gpu, and this machine has no CUDA driver (libcuda.so.1 does not load): install it, "
        "or set compute_setup to cpu");
  }
  const int count = static_cast<int>(comm::list_cuda_devices().size());
  const int index = cluster::choose_device(map, count, base::Environment::of_process());
  const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
  // First of all: otherwise every rank also opens a context on GPU 0.
  c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->setDevice(device);
  return device;
}

namespace {

constexpr int kMmapThresholdBytes = 32 << 20;  // the largest value that mallopt accepts
constexpr int kTrimThresholdBytes = 1 << 30;

bool user_tunes_malloc() {
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  if (tunables != nullptr && std::string_view(tunables).find("glibc.malloc") != std::string_view::npos)
    return true;
  return std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr || std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr;
}

}  // namespace

void keep_freed_memory() {
  if (user_tunes_malloc()) return;
  ::mallopt(M_MMAP_THRESHOLD, kMmapThresholdBytes);
  ::mallopt(M_TRIM_THRESHOLD, kTrimThresholdBytes);
}

}  // namespace lockstep::train
