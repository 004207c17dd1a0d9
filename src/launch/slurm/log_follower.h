#pragma once

#include <string>

#include "base/unique_fd.h"

namespace lockstep::launcher {

// Reads a file that somebody else writes, from its beginning, also before it exists.
class LogFollower {
 public:
  explicit LogFollower(std::string path) : path_(std::move(path)) {}

  // What came since the last call; "" when nothing did, or the file is not there yet.
  std::string read_new();

 private:
  std::string path_;
  base::UniqueFd file_;
};

}  // namespace lockstep::launcher
