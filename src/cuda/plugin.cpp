// What liblockstep_cuda.so exports; see comm/plugin.h.

#include "comm/plugin.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "cuda/nccl_backend.h"

extern "C" __attribute__((visibility("default"))) void lockstep_make_backend(
    const lockstep::comm::PluginRequest& request, c10::intrusive_ptr<c10d::Backend>& result) {
  result = lockstep::cuda::make_nccl_backend(request);
}

extern "C" __attribute__((visibility("default"))) void lockstep_list_devices(
    std::vector<std::string>& names) {
  for (c10::DeviceIndex i = 0; i < c10::cuda::device_count(); ++i) {
    names.emplace_back(at::cuda::getDeviceProperties(i)->name);
  }
}

// The types that the loader casts to are those above.
static lockstep::comm::PluginMakeBackend* const kMakeBackend [[maybe_unused]] = &lockstep_make_backend;
static lockstep::comm::PluginListDevices* const kListDevices [[maybe_unused]] = &lockstep_list_devices;
