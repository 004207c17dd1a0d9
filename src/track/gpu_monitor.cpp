#include "track/gpu_monitor.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/log.h"

namespace lockstep::track {
namespace {

constexpr uint64_t kMebibyte = 1 << 20;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

bool write_all(std::FILE* file, const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
}

}  // namespace

std::string gpu_csv_heading() {
  return "timestamp, index, name, utilization.gpu [%], utilization.memory [%], memory.total [MiB], "
         "memory.used [MiB]";
}

std::string gpu_csv_line(const GpuSample& sample, std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count() % 1000;
  return fmt::format("{:%Y/%m/%d %H:%M:%S}.{:03}, {}, {}, {} %, {} %, {} MiB, {} MiB", local, milliseconds,
                     sample.index, sample.name, sample.gpu_percent, sample.memory_percent,
                     sample.total_bytes / kMebibyte, sample.used_bytes / kMebibyte);
}

GpuMonitor::GpuMonitor(std::filesystem::path file, Period period) : file_(std::move(file)), period_(period) {
  std::string reason;
  nvml_ = Nvml::load(reason);
  if (nvml_ == nullptr) {
    base::log_warning("track", "GPUs are not monitored, '{}' is not written: {}", file_.string(), reason);
    return;
  }
  thread_ = std::thread([this] { run(); });
}

GpuMonitor::~GpuMonitor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void GpuMonitor::run() {
  std::error_code ignored;
  const bool is_new = !std::filesystem::exists(file_, ignored);
  const File file(std::fopen(file_.c_str(), "ae"));
  bool is_good = file && (!is_new || write_all(file.get(), gpu_csv_heading() + "\n"));
  std::unique_lock lock(mutex_);
  while (is_good && !stop_) {
    lock.unlock();
    std::string lines;
    for (const GpuSample& sample : nvml_->sample()) {
      lines += gpu_csv_line(sample, std::chrono::system_clock::now()) + "\n";
    }
    is_good = write_all(file.get(), lines);
    lock.lock();
    wake_.wait_for(lock, period_, [this] { return stop_; });
  }
  if (!is_good) {
    base::log_warning("track", "GPUs are no longer monitored, '{}' cannot be written: {}", file_.string(),
                      std::strerror(errno));
  }
}

}  // namespace lockstep::track
