#include "track/nvml.h"

#include <dlfcn.h>

namespace lockstep::track {
namespace {

// The part of nvml.h that is used: its binary interface does not change.
using Device = void*;
struct Utilization {
  unsigned gpu;
  unsigned memory;
};
struct Memory {
  unsigned version;  // the struct's size, and 2 in the highest byte
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;  // as nvidia-smi shows it: without what the driver reserves
};
constexpr unsigned kMemoryVersion = sizeof(Memory) | (2U << 24);
constexpr int kSuccess = 0;
constexpr unsigned kNameBytes = 96;

}  // namespace

struct Nvml::Library {
  void* handle = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device_by_index)(unsigned, Device*) = nullptr;
  int (*device)(const char*, Device*) = nullptr;
  int (*minor_number)(Device, unsigned*) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  bool initialized = false;

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (initialized) shutdown();
    if (handle != nullptr) ::dlclose(handle);
  }

  template <typename Function>
  bool find(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(::dlsym(handle, symbol));
    return function != nullptr;
  }

  bool find_all() {
    return find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") &&
           find(count, "nvmlDeviceGetCount_v2") && find(device_by_index, "nvmlDeviceGetHandleByIndex_v2") &&
           find(device, "nvmlDeviceGetHandleByUUID") && find(minor_number, "nvmlDeviceGetMinorNumber") &&
           find(name, "nvmlDeviceGetName") && find(utilization, "nvmlDeviceGetUtilizationRates") &&
           find(memory, "nvmlDeviceGetMemoryInfo_v2");
  }
};

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::~Nvml() = default;

std::unique_ptr<Nvml> Nvml::load(std::string& reason) {
  auto library = std::make_unique<Library>();
  library->handle = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library->handle == nullptr) {
    reason = ::dlerror();
    return nullptr;
  }
  if (!library->find_all()) {
    reason = "libnvidia-ml.so.1 lacks a function of NVML";
    return nullptr;
  }
  if (const int status = library->init(); status != kSuccess) {
    reason = "NVML does not start: error " + std::to_string(status);
    return nullptr;
  }
  library->initialized = true;
  return std::unique_ptr<Nvml>(new Nvml(std::move(library)));
}

void* Nvml::find(const std::string& uuid) const {
  Device device = nullptr;
  return library_->device(uuid.c_str(), &device) == kSuccess ? device : nullptr;
}

std::vector<std::string> Nvml::names() const {
  std::vector<std::string> names;
  unsigned count = 0;
  if (library_->count(&count) != kSuccess) return names;
  for (unsigned index = 0; index < count; ++index) {
    Device device = nullptr;
    char name[kNameBytes] = {};
    if (library_->device_by_index(index, &device) != kSuccess) continue;
    if (library_->name(device, name, kNameBytes) == kSuccess) names.emplace_back(name);
  }
  return names;
}

bool Nvml::sees(const std::string& uuid) const { return find(uuid) != nullptr; }

std::optional<GpuSample> Nvml::sample(const std::string& uuid) const {
  const Device device = find(uuid);
  if (device == nullptr) return std::nullopt;
  unsigned index = 0;
  char name[kNameBytes] = {};
  Utilization utilization{};
  Memory memory{};
  memory.version = kMemoryVersion;
  if (library_->minor_number(device, &index) != kSuccess) return std::nullopt;
  if (library_->name(device, name, kNameBytes) != kSuccess) return std::nullopt;
  if (library_->utilization(device, &utilization) != kSuccess) return std::nullopt;
  if (library_->memory(device, &memory) != kSuccess) return std::nullopt;
  return GpuSample{.index = index,
                   .name = name,
                   .gpu_percent = utilization.gpu,
                   .memory_percent = utilization.memory,
                   .total_bytes = memory.total,
                   .used_bytes = memory.used};
}

}  // namespace lockstep::track
