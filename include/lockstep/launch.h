#pragma once

#include <lockstep/exit_status.h>
#include <lockstep/train_config.h>

#include <functional>

namespace lockstep {

class World;

// Runs `rank_main` as one rank of a job and returns the exit status for main().
//
// Under torchrun, srun, mpirun or `lockstep run` this process joins the job as the
// rank it was started as. Otherwise, with nprocs > 1, it starts nprocs copies of
// its own program with the same arguments, each of which comes to this same call
// as a rank, and waits: so do little before it. Under Slurm with one task a node it
// starts the ranks of its node.
//
// Whatever rank_main throws is reported on standard error with rank and host and
// becomes the exit status; so is a bad configuration. One failing rank ends the job. A
// ConfigError that every rank ends by (no such data, no such model) is reported once.
int launch(const TrainConfig& config, const std::function<void(World&)>& rank_main);

// The same, with flags and variables read over the defaults; --help prints them.
int launch(int argc, const char* const* argv, const TrainConfig& defaults,
           const std::function<void(World&, const TrainConfig&)>& rank_main);

// The same for a program that has options of its own.
int launch(int argc, const char* const* argv, const TrainConfig& defaults, const ProgramOptions& own,
           const std::function<void(World&, const TrainConfig&)>& rank_main);

// Runs a body and turns what it throws into a report and an exit status.
int run_main(const std::function<int()>& body) noexcept;

}  // namespace lockstep
