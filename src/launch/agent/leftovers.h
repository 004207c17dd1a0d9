#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace lockstep::launcher {

// Kills every process whose environment has a variable that begins with `entry`
// ("NAME=value..."), and those that they start meanwhile: what a worker has left behind
// in a session of its own is found by nothing else. Processes of others, and those that
// have thrown their environment away, are not found. Blocks for milliseconds. killed: processes
// that are not looked at, they have SIGKILL; the environment of one that hangs in the kernel can
// take as long to read as that.
void kill_leftovers(const std::string& entry, const std::set<pid_t>& killed = {});

}  // namespace lockstep::launcher
