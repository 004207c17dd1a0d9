#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/environment.h"

namespace lockstep::base {

// How processes of one user on several machines get a common secret when nobody gave them
// one: the first of them writes a new one to a file that nobody else may read, in a folder
// that all of them see.
//
// The folder is LOCKSTEP_KEY_DIR, else .lockstep/keys in the user's home.
class KeyFile {
 public:
  // name: the job's, the same for all its processes; letters that are unusual in file
  // names are replaced.
  KeyFile(const std::string& name, const Environment& environment);

  const std::filesystem::path& path() const { return path_; }

  // Makes the folder where it is missing, and replaces what an earlier job of this name
  // has left. ConfigError tells what to do instead.
  void publish(const std::string& secret) const;

  // nullopt: the file is not there yet. ConfigError: it is there, but others could have
  // written or read it.
  std::optional<std::string> read() const;

  // Once all have read it.
  void remove() const noexcept;

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::base
