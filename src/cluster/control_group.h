#pragma once

#include <string>
#include <vector>

namespace lockstep::cluster {

// Where a process finds its control groups. Tests give folders of their own.
struct CgroupPaths {
  std::string membership = "/proc/self/cgroup";
  std::string root = "/sys/fs/cgroup";
};

// A group that this process is in.
struct ControlGroup {
  std::string controllers;  // "cpu,cpuacct" in version 1, empty in version 2
  std::string path;         // below the root: "/user/job", empty for the root itself
};

// In the order of the file; empty where it cannot be read.
std::vector<ControlGroup> control_groups(const CgroupPaths& paths);

// The folders whose limits hold for a group: its own, then up to `root`.
std::vector<std::string> folders_up_to_root(const std::string& root, std::string path);

}  // namespace lockstep::cluster
