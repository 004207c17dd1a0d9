#pragma once

#include <lockstep/error.h>

namespace lockstep::checkpoint {

// A checkpoint cannot be written (full disk, no permission) or read (cut, changed, not
// ours). The text names the file and the reason. What was valid before stays valid.
class CheckpointError : public ConfigError {
 public:
  explicit CheckpointError(std::string_view sentence) : ConfigError("checkpoint", sentence) {}
};

}  // namespace lockstep::checkpoint
