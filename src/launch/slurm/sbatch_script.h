#pragma once

#include <string>

#include "launch/slurm/sbatch_request.h"

namespace lockstep::launcher {

// The commented batch script of the request, for a person to read and for sbatch to
// run. Pure. Checks the request first: ConfigError.
//
// The allocation names counts once, in its #SBATCH lines; all below takes them from
// SLURM_* variables. No port is written down, so that arrays and several jobs on one
// node do not meet. Text of the user never becomes syntax.
std::string sbatch_script(const SbatchRequest& request);

}  // namespace lockstep::launcher
