#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/failure.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lockstep::comm {

// Backends that need libraries which most programs do not have are in plugins, which are loaded
// when they are first needed and never unloaded.

struct PluginRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  // The job's rank of each rank of the group.
  std::vector<int> job_ranks;
  std::chrono::milliseconds timeout{0};
  int device_index = -1;
  // ranks_share_devices()
  bool share_device = false;
  // Where operations that continue after wait() report that they failed. Never null.
  std::shared_ptr<DeviceFailure> failure = std::make_shared<DeviceFailure>();
  // The group's rank that died or closed its group first; nullopt: none so far. May be empty.
  std::function<std::optional<int>()> departed = {};
  // Called when an operation starts, with its name, and when it has ended on the device. Either both
  // or neither are empty.
  std::function<void(const char*)> started = {};
  std::function<void()> ended = {};
};

// --- what plugins export ---

// Of liblockstep_mpi.so and liblockstep_cuda.so. It throws what make_transport may throw.
using PluginMakeBackend = void(const PluginRequest& request, c10::intrusive_ptr<c10d::Backend>& result);
inline constexpr char kPluginMakeBackend[] = "lockstep_make_backend";

struct CudaDevice {
  std::string name;
  std::string uuid;  // "GPU-9a8b5d69-...", as nvidia-smi prints it
};
// Of liblockstep_cuda.so: the devices that this process sees, in order.
using PluginListDevices = void(std::vector<CudaDevice>& devices);
inline constexpr char kPluginListDevices[] = "lockstep_list_devices";

// Kernels that are recorded once and then started together, with one call.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Runs the body once; what it starts on the current stream, also through the autograd engine, is
  // recorded and not executed. The memory that it takes from the allocator stays the recording's.
  // Throws what the body throws, and if the body did something that cannot be recorded.
  virtual void record(const std::function<void()>& body) = 0;
  // Starts what was recorded, on the current stream. Does not wait for it.
  virtual void replay() = 0;
};
// Of liblockstep_cuda.so: make_cuda_graph() and use_own_cuda_stream().
using PluginMakeGraph = void(std::unique_ptr<DeviceGraph>& graph);
inline constexpr char kPluginMakeGraph[] = "lockstep_make_graph";
using PluginUseOwnStream = void(int device_index);
inline constexpr char kPluginUseOwnStream[] = "lockstep_use_own_stream";

// Of liblockstep_cuda.so: limit_cuda_memory().
using PluginLimitMemory = void(int device_index, int64_t bytes);
inline constexpr char kPluginLimitMemory[] = "lockstep_limit_memory";

// Of liblockstep_cuda.so: watch_cuda_stream(). REQUIRES: the plugin made `backend`.
using PluginWatchStream = void(c10d::Backend& backend, const char* operation);
inline constexpr char kPluginWatchStream[] = "lockstep_watch_stream";

// --- what the library calls ---

// LOCKSTEP_NCCL_SHARE_DEVICE, for tests of several ranks on a machine with one GPU: with 1 NCCL
// takes each rank's process for a separate host. ConfigError: not 0 or 1.
inline constexpr char kShareDevice[] = "LOCKSTEP_NCCL_SHARE_DEVICE";
bool ranks_share_devices();

// How to get liblockstep_cuda.so: in a checkout, or for the programs of a package.
#ifdef LOCKSTEP_PORTABLE
inline constexpr char kBuildCuda[] = "install the package lockstep-cuda of the same version beside lockstep";
#else
inline constexpr char kBuildCuda[] = "script/setup --cuda && script/build";
#endif

// Loads liblockstep_<name>.so from the first of: LOCKSTEP_PLUGIN_DIR, the folder of the program,
// lib beside that folder, the folder of the library that contains this code, the dynamic linker's
// search path. Thread-safe. ConfigError lists all that was tried.
c10::intrusive_ptr<c10d::Backend> make_plugin_backend(const std::string& name, const PluginRequest& request);

// The function of this name that liblockstep_<name>.so exports. ConfigError as above, InternalError: it has
// none.
void* plugin_function(const std::string& name, const char* symbol);

// Whether one of these folders has liblockstep_<name>.so. Loads nothing.
bool plugin_exists(const std::string& name);

// The CUDA devices that this process sees; may be none. ConfigError: the CUDA
// library does not load.
std::vector<CudaDevice> list_cuda_devices();

// A graph of kernels on this thread's CUDA device. ConfigError as above.
std::unique_ptr<DeviceGraph> make_cuda_graph();
// Gives this thread a new CUDA stream for its work: a graph cannot be recorded on the default
// stream. ConfigError as above.
void use_own_cuda_stream(int device_index);
// Treats all work on this thread's stream so far as one collective of NCCL's `backend`, which
// reports it if it does not end: for graphs, whose collectives no call of the backend starts.
void watch_cuda_stream(c10d::Backend& backend, const char* operation);
// Limits the tensors of this process to `bytes` of the device; more is c10::OutOfMemoryError.
// CUDA's own memory does not count. ConfigError as above, or if the device has less.
void limit_cuda_memory(int device_index, int64_t bytes);

}  // namespace lockstep::comm
