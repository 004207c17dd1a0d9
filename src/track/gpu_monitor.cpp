#include "track/gpu_monitor.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace lockstep::track {
namespace {

constexpr int kSuccess = 0;
constexpr unsigned kNameBytes = 96;

constexpr uint64_t kMebibyte = 1 << 20;

constexpr const char* kNotAvailable = "[N/A]";  // as nvidia-smi prints it

}  // namespace

std::string gpu_log_header() {
  return "timestamp, index, name, utilization.gpu [%], utilization.memory [%], memory.total [MiB], "
         "memory.used [MiB], power.draw [W], temperature.gpu";
}

std::string gpu_log_line(const GpuSample& sample, std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count() % 1000;
  const std::string power = sample.power_watts ? fmt::format("{:.2f} W", *sample.power_watts) : kNotAvailable;
  const std::string celsius = sample.celsius ? std::to_string(*sample.celsius) : kNotAvailable;
  return fmt::format("{:%Y/%m/%d %H:%M:%S}.{:03}, {}, {}, {} %, {} %, {} MiB, {} MiB, {}, {}", local,
                     milliseconds, sample.index, sample.name, sample.gpu_percent, sample.memory_percent,
                     sample.total_bytes / kMebibyte, sample.used_bytes / kMebibyte, power, celsius);
}

// The used part of nvml.h. Its binary interface is stable. The types are members, because g++ 13 crashes on
// pointers to functions with types of an unnamed namespace.
struct Nvml::Library {
  using Device = void*;
  struct Utilization {
    unsigned gpu;
    unsigned memory;
  };
  struct Memory {
    unsigned version;  // the size of the struct, and 2 in the highest byte
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;  // as nvidia-smi shows it: without the memory that the driver reserves
  };
  static constexpr unsigned kMemoryVersion = sizeof(Memory) | (2U << 24);

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
  int (*power)(Device, unsigned*) = nullptr;                    // milliwatts
  int (*temperature)(Device, int sensor, unsigned*) = nullptr;  // degrees Celsius
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
           find(memory, "nvmlDeviceGetMemoryInfo_v2") && find(power, "nvmlDeviceGetPowerUsage") &&
           find(temperature, "nvmlDeviceGetTemperature");
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
  Library::Device device = nullptr;
  return library_->device(uuid.c_str(), &device) == kSuccess ? device : nullptr;
}

std::vector<std::string> Nvml::names() const {
  std::vector<std::string> names;
  unsigned count = 0;
  if (library_->count(&count) != kSuccess) return names;
  for (unsigned index = 0; index < count; ++index) {
    Library::Device device = nullptr;
    char name[kNameBytes] = {};
    if (library_->device_by_index(index, &device) != kSuccess) continue;
    if (library_->name(device, name, kNameBytes) == kSuccess) names.emplace_back(name);
  }
  return names;
}

bool Nvml::sees(const std::string& uuid) const { return find(uuid) != nullptr; }

std::optional<GpuSample> Nvml::sample(const std::string& uuid) const {
  const Library::Device device = find(uuid);
  if (device == nullptr) return std::nullopt;
  unsigned index = 0;
  char name[kNameBytes] = {};
  Library::Utilization utilization{};
  Library::Memory memory{};
  memory.version = Library::kMemoryVersion;
  if (library_->minor_number(device, &index) != kSuccess) return std::nullopt;
  if (library_->name(device, name, kNameBytes) != kSuccess) return std::nullopt;
  if (library_->utilization(device, &utilization) != kSuccess) return std::nullopt;
  if (library_->memory(device, &memory) != kSuccess) return std::nullopt;
  GpuSample sample{.index = index,
                   .name = name,
                   .gpu_percent = utilization.gpu,
                   .memory_percent = utilization.memory,
                   .total_bytes = memory.total,
                   .used_bytes = memory.used,
                   .power_watts = std::nullopt,
                   .celsius = std::nullopt};
  constexpr int kGpuSensor = 0;
  unsigned milliwatts = 0;
  unsigned celsius = 0;
  if (library_->power(device, &milliwatts) == kSuccess) sample.power_watts = milliwatts / 1000.0;
  if (library_->temperature(device, kGpuSensor, &celsius) == kSuccess) sample.celsius = celsius;
  return sample;
}

GpuMonitor::GpuMonitor(std::filesystem::path file, std::string gpu_uuid, Period period)
    : file_(std::move(file)), gpu_uuid_(std::move(gpu_uuid)), period_(period) {
  std::string reason;
  nvml_ = Nvml::load(reason);
  if (nvml_ != nullptr && !nvml_->sees(gpu_uuid_)) {
    reason = "NVML does not know it";
    nvml_.reset();
  }
  if (nvml_ == nullptr) {
    base::log_warning("track", "the GPU {} is not monitored in '{}': {}", gpu_uuid_, file_.string(), reason);
    return;
  }
  std::error_code ignored;
  const bool is_new = !std::filesystem::exists(file_, ignored);
  descriptor_.reset(::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!descriptor_ || (is_new && !write(gpu_log_header()))) {
    warn_about_file();
    return;
  }
  thread_ = std::thread([this] { run(); });
}

GpuMonitor::~GpuMonitor() {
  {
    const base::MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// One write with O_APPEND: lines of several processes do not mix.
bool GpuMonitor::write(const std::string& line) const {
  const std::string text = line + '\n';
  return ::write(descriptor_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

void GpuMonitor::warn_about_file() const {
  base::log_warning("track", "the GPU {} is not monitored, '{}' cannot be written: {}", gpu_uuid_,
                    file_.string(), std::strerror(errno));
}

void GpuMonitor::run() {
  base::MutexLock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    const std::optional<GpuSample> sample = nvml_->sample(gpu_uuid_);
    if (sample && !write(gpu_log_line(*sample, std::chrono::system_clock::now()))) {
      warn_about_file();
      return;
    }
    const auto next = std::chrono::steady_clock::now() + period_;
    lock.lock();
    while (!stop_ && wake_.wait_until(lock, next)) {
    }
  }
}

}  // namespace lockstep::track
