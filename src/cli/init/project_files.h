#pragma once

#include <string>
#include <vector>

namespace lockstep::cli::init {

struct ProjectFile {
  std::string name;
  std::string content;
};

// The files of a new project: CMakeLists.txt, main.cpp, job.sbatch, README.md, .gitignore.
// `prefix` is where Lockstep is installed. Pure.
std::vector<ProjectFile> project_files(const std::string& name, const std::string& prefix);

}  // namespace lockstep::cli::init
