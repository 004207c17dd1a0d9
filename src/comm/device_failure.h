#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::comm {

// Where a backend reports a collective that failed after its wait() had returned: on CUDA
// wait() orders streams and does not block. The group reads it before every operation and
// after every wait. Thread-safe.
class DeviceFailure {
 public:
  struct Report {
    std::string text;  // one sentence, with the operation and the ranks
    bool timed_out = false;
    std::optional<int> rank;  // of the group: the one that caused it, where that is known
  };

  // The first report counts.
  void report(Report report) {
    const std::lock_guard lock(mutex_);
    if (report_) return;
    report_ = std::move(report);
    failed_ = true;
  }

  bool failed() const { return failed_; }
  std::optional<Report> get() const {
    if (!failed_) return std::nullopt;
    const std::lock_guard lock(mutex_);
    return report_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Report> report_;
  std::atomic<bool> failed_ = false;
};

}  // namespace lockstep::comm
