#pragma once

#include <string>

namespace lockstep::launcher {

// Kills every process whose environment has a variable that begins with `entry`
// ("NAME=value..."), and those that they start meanwhile: what a worker has left behind
// in a session of its own is found by nothing else. Processes of others, and those that
// have thrown their environment away, are not found. Blocks for milliseconds.
void kill_leftovers(const std::string& entry);

}  // namespace lockstep::launcher
