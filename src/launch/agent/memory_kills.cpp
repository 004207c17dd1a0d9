#include "launch/agent/memory_kills.h"

#include <fstream>

namespace lockstep::launcher {

int64_t count_memory_kills(const std::string& vmstat) {
  std::ifstream file(vmstat);
  std::string name;
  for (int64_t value = 0; file >> name >> value;) {
    if (name == "oom_kill") return value;
  }
  return 0;
}

}  // namespace lockstep::launcher
