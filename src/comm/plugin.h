#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lockstep::comm {

// Backends that need libraries which most programs do not have sit in plugins of
// their own, loaded when first asked for and never unloaded.

struct PluginRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  // The job's rank of each rank of the group.
  std::vector<int> job_ranks;
  std::chrono::milliseconds timeout{0};
  int device_index = -1;
};

// What liblockstep_mpi.so and liblockstep_cuda.so export. It throws what
// make_transport may throw.
using PluginMakeBackend = void(const PluginRequest& request, c10::intrusive_ptr<c10d::Backend>& result);
inline constexpr char kPluginMakeBackend[] = "lockstep_make_backend";
struct CudaDevice {
  std::string name;
  std::string uuid;  // "GPU-9a8b5d69-...", as nvidia-smi prints it
};
// liblockstep_cuda.so exports this too: the devices that this process sees, in order.
using PluginListDevices = void(std::vector<CudaDevice>& devices);
inline constexpr char kPluginListDevices[] = "lockstep_list_devices";

// Loads liblockstep_<name>.so, from the first of: LOCKSTEP_PLUGIN_DIR, the folder of
// the program, lib beside that folder, the folder of the library that this code is
// in, the dynamic linker's own search. Thread-safe. ConfigError tells all that was
// tried.
c10::intrusive_ptr<c10d::Backend> make_plugin_backend(const std::string& name, const PluginRequest& request);

// The CUDA devices that this process sees; may be none. ConfigError: the CUDA
// library does not load.
std::vector<CudaDevice> list_cuda_devices();

}  // namespace lockstep::comm
