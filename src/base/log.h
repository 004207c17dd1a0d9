#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace lockstep::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// The source of log lines. One per process, as standard error is.
struct LogIdentity {
  int rank = 0;
  int world_size = 1;
  std::string host;
};

// Sets the prefix "[rank 1 host] " of all later lines in a job with more than one rank. Thread-safe.
void set_log_identity(LogIdentity identity);

// "" if the world has one rank, else "[rank R HOST] ".
std::string log_prefix();

// Lines below this level are dropped. The default is kInfo on rank 0 and kWarning
// on the others; LOCKSTEP_LOG_LEVEL=debug|info|warning|error overrides it.
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);

// Writes a line to standard error with one write(2), so that the lines of several ranks do not mix. Never
// throws, because destructors call it.
void log_line(LogLevel level, std::string_view component, std::string_view message) noexcept;

template <typename... Args>
void log_debug(std::string_view component, fmt::format_string<Args...> text, Args&&... args) {
  if (log_enabled(LogLevel::kDebug)) {
    log_line(LogLevel::kDebug, component, fmt::format(text, std::forward<Args>(args)...));
  }
}

template <typename... Args>
void log_info(std::string_view component, fmt::format_string<Args...> text, Args&&... args) {
  if (log_enabled(LogLevel::kInfo)) {
    log_line(LogLevel::kInfo, component, fmt::format(text, std::forward<Args>(args)...));
  }
}

template <typename... Args>
void log_warning(std::string_view component, fmt::format_string<Args...> text, Args&&... args) {
  if (log_enabled(LogLevel::kWarning)) {
    log_line(LogLevel::kWarning, component, fmt::format(text, std::forward<Args>(args)...));
  }
}

template <typename... Args>
void log_error(std::string_view component, fmt::format_string<Args...> text, Args&&... args) {
  log_line(LogLevel::kError, component, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace lockstep::base
