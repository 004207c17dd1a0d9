#pragma once

#include <lockstep/rank_map.h>

#include <optional>
#include <string>

#include "cluster/placement.h"
#include "cluster/variables.h"

namespace lockstep::cluster {

// What a placement is decided by: the environment overlaid by the user's arguments.
struct Evidence {
  Variables variables;
  std::optional<int> nprocs;
  std::optional<Rendezvous> init_method;  // where it names a place
  bool explicit_rank = false;             // rank and world size are arguments
  std::string host;
};

// One rule a launcher, each in its own file. All throw ConfigError.

// RANK, WORLD_SIZE and what belongs to them; RANK is there.
Placement place_by_rank_variables(const Evidence& evidence);

// Who this process is in the Slurm step that it is a task of; nullopt where it is
// none: outside Slurm, in a batch script, in the shell of salloc. The rendezvous is
// left open.
std::optional<RankMap> read_slurm_step(const Variables& variables);
// Joins the step as a rank, or starts several ranks a task.
Placement place_in_slurm_step(const Evidence& evidence, RankMap step);
// What the user should know who has an allocation but did not call srun; "" if
// there is nothing to say.
std::string slurm_warning(const Evidence& evidence);

// Whether MPI's variables are there; srun --mpi sets some of them too.
bool has_mpi_variables(const Variables& variables);
// Whether those are there that only mpirun and mpiexec set. In a Slurm step such a
// process is not a task: mpirun's daemon is, and its ranks inherit the task's place.
bool started_by_mpirun(const Variables& variables);
// Whether RANK and WORLD_SIZE say the same as MPI.
bool repeats_mpi(const Variables& variables);
Placement place_in_mpi_world(const Evidence& evidence);

// Pieces of the rules.

// nprocs, where it is given, must be the launcher's world size.
void check_nprocs(const Evidence& evidence, const RankMap& map, const Names& names);
// Local rank and size where nobody tells them: all ranks are here if they meet at
// a loopback address, else one rank a node is assumed and said so.
std::string assume_local_ranks(RankMap& map);
// Fills what follows from the rest: the host, and the one node of a one-node job.
void complete(RankMap& map, const std::string& host);

}  // namespace lockstep::cluster
