#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exported/program.h"

namespace lockstep::exported {

// Which modules of a program are segments: the nodes that Python recorded inside of one call of the module
// run together. Arithmetic on the program alone.

// The paths of the modules that a pattern selects, in the order in which they run; of modules inside of each
// other the outer one. A pattern is a path in which * stands for any text without a dot, "layers.*", or
// several with commas. "auto": the outermost modules with parameters whose class occurs several times, and
// nothing if no class does. "": nothing. ProgramError: the pattern selects nothing; it lists the paths.
std::vector<std::string> modules_matching(const Program& program, const std::string& pattern);

// For each call of the program whether its module is one of these.
std::vector<bool> calls_of(const Program& program, const std::vector<std::string>& paths);

// Which calls shard, and which compute their activations again.
struct Cuts {
  std::vector<bool> shard;
  std::vector<bool> recompute;
};

// The outermost calls of each kind that a node belongs to, from the outside.
struct Cut {
  uint32_t call = 0;
  bool shards = false;
  bool recomputes = false;
  bool operator==(const Cut&) const = default;
};

// The cuts of each node of a graph. A node of unknown module between two of the same segment belongs to it.
std::vector<std::vector<Cut>> cuts_of(const std::vector<Node>& nodes, const Cuts& cuts);

}  // namespace lockstep::exported
