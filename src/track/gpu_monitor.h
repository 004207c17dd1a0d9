#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "track/nvml.h"

namespace lockstep::track {

// "timestamp, index, name, utilization.gpu [%], ...": the heading of
// nvidia-smi --query-gpu=timestamp,index,name,utilization.gpu,utilization.memory,memory.total,memory.used
// --format=csv, and the line that it prints for a sample.
std::string gpu_csv_heading();
std::string gpu_csv_line(const GpuSample& sample, std::chrono::system_clock::time_point time);

// Writes how busy and how full a GPU is to a file as nvidia-smi would, from a thread of its
// own, while it lives. A file that is there is continued, and several processes of a machine
// may add to one: each line is one write at the file's end. What fails is said once and ends
// the writing, never the run.
class GpuMonitor {
 public:
  using Period = std::chrono::milliseconds;

  // A new file has its heading when this returns. Where the machine has no NVML, or NVML no
  // such GPU, nothing is written, and it is said once on the log.
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
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace lockstep::track
