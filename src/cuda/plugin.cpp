// What liblockstep_cuda.so exports; see comm/plugin.h.

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>

#include "comm/plugin.h"
#include "cuda/nccl_backend.h"

namespace {

// A CUDA graph on this thread's device.
class Graph : public lockstep::comm::DeviceGraph {
 public:
  void record(const std::function<void()>& body) override {
    graph_ = std::make_unique<at::cuda::CUDAGraph>();
    // The cached memory belongs to eager steps; the recording has its own pool.
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    // Records this thread alone: loader threads may pin memory at the same time, and NCCL's watchdog
    // queries events.
    graph_->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      body();
    } catch (...) {
      abandon();
      throw;
    }
    graph_->capture_end();
  }

  void replay() override { graph_->replay(); }

 private:
  void abandon() {
    try {
      graph_->capture_end();
    } catch (const c10::Error&) {  // the recording is broken: this is its cleanup
    }
    graph_.reset();
  }

  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

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

extern "C" __attribute__((visibility("default"))) void lockstep_make_graph(
    std::unique_ptr<lockstep::comm::DeviceGraph>& graph) {
  graph = std::make_unique<Graph>();
}

extern "C" __attribute__((visibility("default"))) void lockstep_use_own_stream(int device_index) {
  c10::cuda::setCurrentCUDAStream(
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, static_cast<c10::DeviceIndex>(device_index)));
}

extern "C" __attribute__((visibility("default"))) void lockstep_watch_stream(c10d::Backend& backend,
                                                                             const char* operation) {
  lockstep::cuda::watch_stream(backend, operation);
}

extern "C" __attribute__((visibility("default"))) void lockstep_limit_memory(int device_index,
                                                                             int64_t bytes) {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // makes the allocator
  const auto index = static_cast<c10::DeviceIndex>(device_index);
  const auto total = static_cast<double>(at::cuda::getDeviceProperties(index)->totalGlobalMem);
  if (bytes <= 0 || static_cast<double>(bytes) > total) {
    throw lockstep::ConfigError(
        "cuda", fmt::format("the limit of memory must be 1 to {:.0f} bytes: {}", total, bytes));
  }
  c10::cuda::CUDACachingAllocator::setMemoryFraction(static_cast<double>(bytes) / total, index);
}

// Checks that these functions have the types to which the loader casts.
static lockstep::comm::PluginMakeBackend* const kMakeBackend [[maybe_unused]] = &lockstep_make_backend;
static lockstep::comm::PluginListDevices* const kListDevices [[maybe_unused]] = &lockstep_list_devices;
static lockstep::comm::PluginMakeGraph* const kMakeGraph [[maybe_unused]] = &lockstep_make_graph;
static lockstep::comm::PluginUseOwnStream* const kUseOwnStream [[maybe_unused]] = &lockstep_use_own_stream;
static lockstep::comm::PluginWatchStream* const kWatchStream [[maybe_unused]] = &lockstep_watch_stream;
static lockstep::comm::PluginLimitMemory* const kLimitMemory [[maybe_unused]] = &lockstep_limit_memory;
