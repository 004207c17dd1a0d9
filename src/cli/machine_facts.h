#pragma once

#include <lockstep/json.h>
#include <lockstep/rank_map.h>

#include <string>

namespace lockstep::cli {

// What `lockstep doctor` reports without LibTorch.

struct DoctorOptions {
  bool json = false;
  std::string backend = "auto";
  std::string compute_setup = "auto";
};
// Throws HelpRequested and ConfigError as Command::run does.
DoctorOptions parse_doctor(int argc, const char* const* argv);

Json version_facts();
Json system_facts();
Json cpu_facts();
// The AMD GPUs, which no build uses; empty: none. ConfigError as visible_amd_gpus().
Json amd_gpu_facts();
Json map_facts(const RankMap& map);
// What the ranks of this node lack in the allocation, with the flag to change. ConfigError as
// check_allocation().
Json allocation_facts(const RankMap& map, bool uses_gpu);

// The members of an object, a line each; inner objects are indented.
std::string indented(const Json& value, int depth);

}  // namespace lockstep::cli
