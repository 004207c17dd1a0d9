#include "track/gpu_monitor.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace lockstep::track {
namespace {

constexpr uint64_t kMebibyte = 1 << 20;

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
  if (!descriptor_ || (is_new && !write(gpu_csv_heading()))) {
    warn_about_file();
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

// At once and at the end of the file, whoever else writes to it.
bool GpuMonitor::write(const std::string& line) const {
  const std::string text = line + '\n';
  return ::write(descriptor_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

void GpuMonitor::warn_about_file() const {
  base::log_warning("track", "the GPU {} is not monitored, '{}' cannot be written: {}", gpu_uuid_,
                    file_.string(), std::strerror(errno));
}

void GpuMonitor::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    const std::optional<GpuSample> sample = nvml_->sample(gpu_uuid_);
    if (sample && !write(gpu_csv_line(*sample, std::chrono::system_clock::now()))) {
      warn_about_file();
      return;
    }
    lock.lock();
    wake_.wait_for(lock, period_, [this] { return stop_; });
  }
}

}  // namespace lockstep::track
