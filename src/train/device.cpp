#include "train/device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <vector>

#include "base/environment.h"
#include "cluster/devices.h"
#include "comm/plugin.h"

namespace lockstep::train {
namespace {

// Loading LibTorch's CUDA half costs a second; without a driver it is in vain.
bool has_driver() {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return false;
  ::dlclose(driver);
  return true;
}

bool wants_gpu(const std::string& compute_setup) {
  if (compute_setup == "gpu") return true;
  if (compute_setup == "cpu" || !has_driver()) return false;
  try {
    return !comm::list_cuda_devices().empty();
  } catch (const ConfigError&) {
    return false;  // auto: a build without CUDA trains on the CPU
  }
}

}  // namespace

c10::Device choose_device(const RankMap& map, const std::string& compute_setup) {
  if (!wants_gpu(compute_setup)) return c10::Device(c10::DeviceType::CPU);
  if (!has_driver()) {
    throw ConfigError(
        "launch", "compute_setup is gpu, and this machine has no CUDA driver: libcuda.so.1 does not load");
  }
  const int count = static_cast<int>(comm::list_cuda_devices().size());
  const int index = cluster::choose_device(map, count, base::Environment::of_process());
  const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
  // Before anything else touches CUDA: else every rank opens a context on GPU 0 too.
  c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->setDevice(device);
  return device;
}

}  // namespace lockstep::train
