#pragma once

#include <c10/util/Exception.h>
#include <lockstep/error.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.h"

namespace lockstep::comm {

// A CommError because a peer did not take part in time; the connections are open.
class TimeoutError : public CommError {
 public:
  using CommError::CommError;
};

// The first line of an exception's text; of c10's without the stack trace.
inline std::string first_line_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

// Where an exception was thrown, for its text.
struct OperationContext {
  std::string_view operation;
  std::string_view backend;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};
};

// The one place that turns c10d's exceptions into Lockstep's: an argument that c10d rejects
// becomes a ConfigError; a timeout, a lost connection or a failed store becomes a CommError.
// Exceptions of Lockstep pass unchanged.
std::exception_ptr translate_failure(std::exception_ptr failure, const OperationContext& context);

// Where a backend reports a collective that failed after its wait() had returned: on CUDA wait()
// orders streams and does not block. The group reads the report before every operation and after
// every wait. Thread-safe.
class DeviceFailure {
 public:
  struct Report {
    std::string text;  // one sentence, with the operation and the ranks
    bool timed_out = false;
    std::optional<int> rank;  // of the group: the one that caused the failure, if known
  };

  // The first report counts.
  void report(Report report) {
    const base::MutexLock lock(mutex_);
    if (report_) return;
    report_ = std::move(report);
    failed_ = true;
  }

  bool failed() const { return failed_; }
  std::optional<Report> get() const {
    if (!failed_) return std::nullopt;
    const base::MutexLock lock(mutex_);
    return report_;
  }

 private:
  mutable base::Mutex mutex_;
  std::optional<Report> report_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<bool> failed_ = false;
};

}  // namespace lockstep::comm
