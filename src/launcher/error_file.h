#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::launcher {

// How a failed worker reports its error to its launcher: the file that TORCHELASTIC_ERROR_FILE
// names, JSON in either of torchrun's two shapes.
struct WorkerError {
  std::string message = {};    // one or several lines
  std::string callstack = {};  // "" if the file holds none
  int64_t timestamp_s = 0;     // since the epoch; 0: unknown
  std::string text = {};       // the whole file
};

// nullopt: there is no file, or it is no such JSON; a broken file must not hide the failure
// itself. At most the first MiB is read.
std::optional<WorkerError> read_error_file(const std::string& path);

// {"message": {"message": ..., "extraInfo": {"py_callstack": ..., "timestamp": ...}}}.
// Throws ConfigError if it cannot be written. Bytes that are not UTF-8 are replaced.
void write_error_file(const std::string& path, const WorkerError& error);

// Writes a worker's error file to `path` for an outer launcher, as torchrun does: the same text,
// and in the longer shape the exit code (-n for signal n) as errorCode.
void forward_error_file(const std::string& path, const std::string& text, int exit_code);

}  // namespace lockstep::launcher
