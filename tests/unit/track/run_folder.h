#pragma once

#include <lockstep/tracker.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace lockstep::track {

// A folder of its own for a test, removed at the end.
class RunFolder {
 public:
  RunFolder() {
    char name[] = "/tmp/lockstep-track-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~RunFolder() { std::filesystem::remove_all(path_); }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  TrackerOptions new_run() const { return {.folder = path_, .resume_step = {}, .run_name = {}}; }
  TrackerOptions resumed_at(int64_t step) const {
    return {.folder = path_, .resume_step = step, .run_name = {}};
  }

  std::string content_of(const std::string& name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void put(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      found.push_back(entry.path().filename());
    return found;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::track
