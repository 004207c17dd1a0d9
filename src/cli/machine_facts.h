#pragma once

#include <lockstep/json.h>

namespace lockstep::cli {

// What this process sees of its machine: versions, CPUs, memory, GPUs. Throws
// nothing: what cannot be read is told as text in its place.
Json machine_facts();

// Every backend by name: {"usable": bool, "reason": text, "check": text}. Usable
// ones have reduced real data between two ranks (as threads of this process), or
// one rank where the backend allows no more.
Json backend_facts();

}  // namespace lockstep::cli
