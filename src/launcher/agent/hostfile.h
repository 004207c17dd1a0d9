#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

// A node in a hostfile of DeepSpeed's launcher, which has lines "NAME slots=NUMBER" and comments after #.
struct HostfileNode {
  std::string name;
  int slots = 0;  // ranks
};

// The nodes in the order of their lines. ConfigError names the file, the line and the mistake in it.
std::vector<HostfileNode> read_hostfile(const std::filesystem::path& path);

// The nodes that --include, or without those --exclude, of DeepSpeed's launcher chooses: "NAME@NAME", or ""
// for all. ConfigError: both are given, a name is not a node's, or no node is left.
std::vector<HostfileNode> choose_nodes(std::vector<HostfileNode> nodes, const std::string& include,
                                       const std::string& exclude);

// The place of a machine among the nodes. Names that are equal up to their first dot are the same if one of
// them has no dot. ConfigError: it has none, or several.
int place_among(const std::vector<HostfileNode>& nodes, std::string_view host);

}  // namespace lockstep::launcher
