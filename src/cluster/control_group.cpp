#include "cluster/control_group.h"

#include <fstream>

namespace lockstep::cluster {

std::vector<ControlGroup> control_groups(const CgroupPaths& paths) {
  std::ifstream membership(paths.membership);
  std::vector<ControlGroup> groups;
  // "0::/group" is version 2, "4:cpu,cpuacct:/group" version 1.
  for (std::string line; std::getline(membership, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    ControlGroup group{line.substr(first + 1, second - first - 1), line.substr(second + 1)};
    if (group.path == "/") group.path.clear();
    groups.push_back(std::move(group));
  }
  return groups;
}

std::vector<std::string> folders_up_to_root(const std::string& root, std::string path) {
  std::vector<std::string> folders;
  while (true) {
    folders.push_back(root + path);
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return folders;
    path.resize(slash);
  }
}

}  // namespace lockstep::cluster
