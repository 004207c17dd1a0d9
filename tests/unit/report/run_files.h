#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temporary_folder.h"

namespace lockstep::test {

// A folder in which a test writes what a run would have left there.
class RunFiles {
 public:
  explicit RunFiles(const std::string& name = "run",
                    const std::filesystem::path& place = std::filesystem::temp_directory_path())
      : parent_(place), path_(parent_.path() / name) {
    std::filesystem::create_directories(path_);
  }

  RunFiles& write(const std::string& file, const std::string& content) {
    std::ofstream(path_ / file, std::ios::binary) << content;
    return *this;
  }

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& parent() const { return parent_.path(); }

 private:
  TemporaryFolder parent_;
  std::filesystem::path path_;
};

}  // namespace lockstep::test
