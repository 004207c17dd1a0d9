// What liblockstep_cuda.so exports; see comm/plugin.h.

#include "comm/plugin.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "cuda/nccl_backend.h"

namespace {

// GPU-8-4-4-4-12 hexadecimal digits.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void lockstep_make_backend(
    const lockstep::comm::PluginRequest& request, c10::intrusive_ptr<c10d::Backend>& result) {
  result = lockstep::cuda::make_nccl_backend(request);
}

extern "C" __attribute__((visibility("default"))) void lockstep_list_devices(
    std::vector<lockstep::comm::CudaDevice>& devices) {
  for (c10::DeviceIndex i = 0; i < c10::cuda::device_count(); ++i) {
    const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(i);
    devices.push_back({properties.name, uuid_text(properties.uuid)});
  }
}

// The types that the loader casts to are those above.
static lockstep::comm::PluginMakeBackend* const kMakeBackend [[maybe_unused]] = &lockstep_make_backend;
static lockstep::comm::PluginListDevices* const kListDevices [[maybe_unused]] = &lockstep_list_devices;
