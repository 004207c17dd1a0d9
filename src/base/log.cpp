#include "base/log.h"

#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/mutex.h"

namespace lockstep::base {
namespace {

struct LogState {
  Mutex mutex;
  LogIdentity identity LOCKSTEP_GUARDED_BY(mutex);
  std::optional<LogLevel> level LOCKSTEP_GUARDED_BY(mutex);
};

// Global on purpose: see LogIdentity. Never destroyed, because destructors log.
LogState& log_state() {
  static LogState* instance = new LogState;
  return *instance;
}

// The names of Python's logging too, in capitals. nullopt: another text.
std::optional<LogLevel> level_named(std::string name) {
  for (char& letter : name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning" || name == "warn") return LogLevel::kWarning;
  if (name == "error" || name == "critical") return LogLevel::kError;
  return std::nullopt;
}

// LOGLEVEL is torchrun's variable, which job scripts set.
std::optional<LogLevel> level_from_environment() {
  for (const char* variable : {"LOCKSTEP_LOG_LEVEL", "LOGLEVEL"}) {
    const char* text = std::getenv(variable);
    if (text == nullptr) continue;
    if (const auto level = level_named(text)) return level;
  }
  return std::nullopt;
}

std::string prefix_of(const LogIdentity& identity) {
  if (identity.world_size <= 1) return "";
  return fmt::format("[rank {} {}] ", identity.rank, identity.host);
}

std::string_view name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug: ";
    case LogLevel::kInfo: return "";
    case LogLevel::kWarning: return "warning: ";
    case LogLevel::kError: return "error: ";
  }
  return "";
}

}  // namespace

void set_log_identity(LogIdentity identity) {
  LogState& state = log_state();
  const MutexLock lock(state.mutex);
  state.identity = std::move(identity);
}

std::string log_prefix() {
  LogState& state = log_state();
  const MutexLock lock(state.mutex);
  return prefix_of(state.identity);
}

void set_log_level(LogLevel level) {
  LogState& state = log_state();
  const MutexLock lock(state.mutex);
  state.level = level;
}

bool log_enabled(LogLevel level) {
  static const std::optional<LogLevel> from_environment = level_from_environment();
  LogState& state = log_state();
  const MutexLock lock(state.mutex);
  const LogLevel by_rank = state.identity.rank == 0 ? LogLevel::kInfo : LogLevel::kWarning;
  return level >= state.level.value_or(from_environment.value_or(by_rank));
}

void log_line(LogLevel level, std::string_view component, std::string_view message) noexcept {
  try {
    const std::string line = fmt::format("{}[{}] {}{}\n", log_prefix(), component, name_of(level), message);
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {
    // There is no other place to report an error of the log itself.
  }
}

}  // namespace lockstep::base
