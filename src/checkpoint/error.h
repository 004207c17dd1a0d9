#pragma once

#include <fmt/format.h>
#include <lockstep/error.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

// A checkpoint cannot be written (full disk, no permission) or read (truncated, changed, not
// written by Lockstep). The text names the file and the reason. Checkpoints that were valid before
// stay valid.
class CheckpointError : public ConfigError {
 public:
  explicit CheckpointError(std::string_view sentence) : ConfigError("checkpoint", sentence) {}
};

// Faults (base/file.h) of files of a checkpoint.
[[noreturn]] inline void fail_unreadable(const std::filesystem::path& path, const std::string& reason) {
  throw CheckpointError(fmt::format("cannot read '{}': {}", path.string(), reason));
}
[[noreturn]] inline void fail_broken(const std::filesystem::path& path, const std::string& reason) {
  throw CheckpointError(fmt::format("'{}' is broken: {}", path.string(), reason));
}

}  // namespace lockstep::checkpoint
