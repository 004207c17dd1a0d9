#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace lockstep::track {

// The state of a GPU at one moment, as NVML reports it.
struct GpuSample {
  // N of /dev/nvidiaN. NVML's own index counts only the GPUs that the process can access: in a
  // container or a Slurm task with one GPU it is always 0.
  unsigned index = 0;
  std::string name;
  unsigned gpu_percent = 0;     // share of the last period in which a kernel ran
  unsigned memory_percent = 0;  // share of it in which memory was read or written
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;
  // nullopt: this GPU does not report it.
  std::optional<double> power_watts;
  std::optional<unsigned> celsius;
};

// The header line of the log, and a GPU's line at this time.
std::string gpu_log_header();
std::string gpu_log_line(const GpuSample& sample, std::chrono::system_clock::time_point time);

// NVML, the management library of NVIDIA's driver. It is loaded at run time: nothing links
// against it. One thread at a time.
class Nvml {
 public:
  // nullptr: no library or no driver is installed; `reason` then says which.
  static std::unique_ptr<Nvml> load(std::string& reason);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // The names of the GPUs that this process can access, in NVML's order.
  std::vector<std::string> names() const;
  // Whether this process can access the GPU with this UUID, "GPU-9a8b5d69-...".
  bool sees(const std::string& uuid) const;
  // nullopt: the GPU does not answer.
  std::optional<GpuSample> sample(const std::string& uuid) const;

 private:
  struct Library;

  void* find(const std::string& uuid) const;

  explicit Nvml(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
};

// Appends the utilisation, memory use, power and temperature of a GPU to a CSV file while the object lives,
// from a background thread, in the format of
//   nvidia-smi --format=csv --query-gpu=timestamp,index,name,utilization.gpu,utilization.memory,memory.total,
//              memory.used,power.draw,temperature.gpu
// Several processes of a node may append to one file: each line is one write with O_APPEND. A
// failure is logged once and stops the monitor, never the run.
class GpuMonitor {
 public:
  using Period = std::chrono::milliseconds;

  // A new file has its header line when this returns. Without NVML, or if NVML does not know the
  // GPU, nothing is written and one warning is logged.
  GpuMonitor(std::filesystem::path file, std::string gpu_uuid, Period period = std::chrono::seconds(5));
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

 private:
  void run();
  bool write(const std::string& line) const;
  void warn_about_file() const;

  const std::filesystem::path file_;
  const std::string gpu_uuid_;
  const Period period_;
  std::unique_ptr<Nvml> nvml_;
  base::UniqueFd descriptor_;
  base::Mutex mutex_;
  base::Condition wake_;
  bool stop_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep::track
