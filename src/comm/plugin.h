#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/device_failure.h"

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
  // ranks_share_devices()
  bool share_device = false;
  // Where operations that run on after wait() report that they failed. Never null.
  std::shared_ptr<DeviceFailure> failure = std::make_shared<DeviceFailure>();
  // The group's rank that died or closed its group first; none so far: nullopt. May be empty.
  std::function<std::optional<int>()> departed = {};
  // Called when an operation starts, with its name, and when it has ended on the device. May be
  // empty; both are or none.
  std::function<void(const char*)> started = {};
  std::function<void()> ended = {};
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

// Kernels that are recorded once and then started all together, with one call.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Runs the body once; what it starts on the current stream, also through the autograd
  // engine, is recorded and not executed. The memory that it takes from the allocator
  // stays the record's. Throws what the body throws, and where it did something that
  // cannot be recorded.
  virtual void record(const std::function<void()>& body) = 0;
  // Starts what was recorded, on the current stream. Does not wait for it.
  virtual void replay() = 0;
};
// liblockstep_cuda.so exports these too. A record cannot be made on the default stream:
// the second one gives this thread a stream of its own.
using PluginMakeGraph = void(std::unique_ptr<DeviceGraph>& graph);
inline constexpr char kPluginMakeGraph[] = "lockstep_make_graph";
using PluginUseOwnStream = void(int device_index);
inline constexpr char kPluginUseOwnStream[] = "lockstep_use_own_stream";

// liblockstep_cuda.so exports this too: of one device, all bytes that this process may take
// from now on.
using PluginLimitMemory = void(int device_index, int64_t bytes);
inline constexpr char kPluginLimitMemory[] = "lockstep_limit_memory";

// liblockstep_cuda.so exports this too. `backend` is one that it made.
using PluginWatchStream = void(c10d::Backend& backend, const char* operation);
inline constexpr char kPluginWatchStream[] = "lockstep_watch_stream";

// LOCKSTEP_NCCL_SHARE_DEVICE, for tests of several ranks on a machine with one GPU: 1 where
// NCCL shall take each rank's process for a host of its own. ConfigError: not 0 or 1.
inline constexpr char kShareDevice[] = "LOCKSTEP_NCCL_SHARE_DEVICE";
bool ranks_share_devices();

// What gives a checkout liblockstep_cuda.so.
inline constexpr char kBuildCuda[] = "script/setup --cuda && script/build";

// Loads liblockstep_<name>.so, from the first of: LOCKSTEP_PLUGIN_DIR, the folder of
// the program, lib beside that folder, the folder of the library that this code is
// in, the dynamic linker's own search. Thread-safe. ConfigError tells all that was
// tried.
c10::intrusive_ptr<c10d::Backend> make_plugin_backend(const std::string& name, const PluginRequest& request);

// Whether liblockstep_<name>.so is a file of one of these folders. Loads nothing.
bool plugin_exists(const std::string& name);

// The CUDA devices that this process sees; may be none. ConfigError: the CUDA
// library does not load.
std::vector<CudaDevice> list_cuda_devices();

// A graph of kernels on this thread's CUDA device. ConfigError as above.
std::unique_ptr<DeviceGraph> make_cuda_graph();
// From now on this thread's work goes to a CUDA stream of its own. ConfigError as above.
void use_own_cuda_stream(int device_index);
// All that this thread's stream was given so far counts as one collective of NCCL's `backend`,
// which reports where it does not end: for graphs, whose collectives no call starts.
void watch_cuda_stream(c10d::Backend& backend, const char* operation);
// Tensors of this process take no more than `bytes` of the device; beyond that is
// c10::OutOfMemoryError. What CUDA itself needs does not count. ConfigError as above, or
// where the device has not that much.
void limit_cuda_memory(int device_index, int64_t bytes);

}  // namespace lockstep::comm
