#pragma once

#include <lockstep/track.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace lockstep::track {

// The folder of one run, as trackers see it.
class RunFolder {
 public:
  const std::filesystem::path& path() const { return folder_.path(); }
  TrackerOptions new_run() const { return {.folder = path(), .resume_step = {}, .run_name = {}}; }
  TrackerOptions resumed_at(int64_t step) const {
    return {.folder = path(), .resume_step = step, .run_name = {}};
  }

  std::string content_of(const std::string& name) const {
    std::ifstream file(path() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void put(const std::string& name, const std::string& content) const {
    std::ofstream(path() / name, std::ios::binary) << content;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path()))
      found.push_back(entry.path().filename());
    return found;
  }

 private:
  test::TemporaryFolder folder_;
};

}  // namespace lockstep::track
