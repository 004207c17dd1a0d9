#pragma once

#include <filesystem>
#include <string>

#include "base/unique_fd.h"

namespace lockstep::launcher {

// Opens a worker's log file for writing. flags: O_TRUNC to replace it, O_APPEND to share it.
// Throws ConfigError if that fails.
base::UniqueFd open_log_file(const std::filesystem::path& path, int flags);

// torchrun's layout of a node's log files:
//
//   BASE/RUN-ID_RANDOM/attempt_0/LOCAL-RANK/{stdout.log,stderr.log,error.json}
//   BASE/RUN-ID_RANDOM/attempt_0/filtered_{stdout,stderr}.log
//
// Without a base it is a temporary folder, which the destructor removes unless `keep` is set; with
// the base /dev/null it is never kept. The next launcher of the same user removes what a killed
// launcher has left.
class LogFolder {
 public:
  // base "": temporary. keep: a temporary one stays too. Throws ConfigError if the folder cannot
  // be made.
  LogFolder(const std::string& base, const std::string& run_id, bool keep);
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;
  ~LogFolder();

  const std::filesystem::path& path() const { return path_; }
  // Makes the folders of one generation's workers; removes what an earlier attempt of the same
  // number left.
  void make_attempt(int number, int local_world_size);
  std::filesystem::path attempt(int number) const;
  std::filesystem::path worker(int number, int local_rank) const;

 private:
  std::filesystem::path path_;
  std::filesystem::path remove_;  // by the destructor; empty: nothing
  base::UniqueFd lock_;           // on remove_, as long as this process lives
};

}  // namespace lockstep::launcher
