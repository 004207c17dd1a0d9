#pragma once

#include <filesystem>

namespace lockstep::test {

// An empty folder of its own, removed with what is in it.
class TemporaryFolder {
 public:
  // In `parent`: /tmp, or /dev/shm where a test writes much that need not reach a disk.
  explicit TemporaryFolder(const char* parent = "/tmp");
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::test
