#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::launcher {

// What a failed worker leaves for its launcher: the file that TORCHELASTIC_ERROR_FILE
// names, JSON in either of torchrun's two shapes.
struct WorkerError {
  std::string message = {};    // one or several lines
  std::string callstack = {};  // "" where the worker gives none
  int64_t timestamp_s = 0;     // since the epoch; 0: not told
  std::string text = {};       // the file as it is
};

// nullopt: no file, or one that is no such JSON; a broken file must not hide the
// failure itself. At most the first MiB is read.
std::optional<WorkerError> read_error_file(const std::string& path);

// {"message": {"message": ..., "extraInfo": {"py_callstack": ..., "timestamp": ...}}}.
// Throws ConfigError when it cannot be written. Bytes that are no UTF-8 are replaced.
void write_error_file(const std::string& path, const WorkerError& error);

// Passes a worker's file on to whoever waits for it at `path`, as torchrun does: the
// same text, and in the longer shape the exit code (-n for signal n) as errorCode.
void pass_error_file_on(const std::string& path, const std::string& text, int exit_code);

}  // namespace lockstep::launcher
