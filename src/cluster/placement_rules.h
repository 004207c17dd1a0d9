#pragma once

#include <lockstep/rank_map.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/placement.h"
#include "cluster/variables.h"

namespace lockstep::cluster {

// The input of a placement: the environment, overlaid by the user's arguments.
struct Evidence {
  Variables variables;
  std::optional<int> nprocs;
  std::optional<Rendezvous> init_method;  // if it names a rendezvous; empty for env://
  bool explicit_rank = false;             // rank and world size are arguments
  std::string host;
};

// One rule per launcher. All throw ConfigError.

// torchrun's variables (RANK, WORLD_SIZE, ...), also when set by hand or given as
// arguments. REQUIRES: RANK is set.
Placement place_by_rank_variables(const Evidence& evidence);

// The place of this process in its Slurm step. nullopt: it is no task of a step (outside
// Slurm, in a batch script, in the shell of salloc). The rendezvous is not filled in.
std::optional<RankMap> read_slurm_step(const Variables& variables);
// Joins the step as a rank, or starts several ranks per task.
Placement place_in_slurm_step(const Evidence& evidence, RankMap step);
// A warning for a process that has a Slurm allocation but was not started by srun; "" if
// there is no reason to warn.
std::string slurm_warning(const Evidence& evidence);

// Whether MPI's variables are set; srun --mpi sets some of them too.
bool has_mpi_variables(const Variables& variables);
// Whether a variable is set that only mpirun and mpiexec set. Inside a Slurm step such a
// process is not a task: mpirun's daemon is the task, and its ranks inherit the task's
// variables.
bool started_by_mpirun(const Variables& variables);
// Whether RANK and WORLD_SIZE equal MPI's values.
bool repeats_mpi(const Variables& variables);
Placement place_in_mpi_world(const Evidence& evidence);

// --- Parts that several rules share ---

// Ports that Lockstep derives lie below the range from which Linux assigns ephemeral
// ports (32768 and up), so that no outgoing connection occupies them.
inline constexpr int kFirstDerivedPort = 20000;
inline constexpr int kNumDerivedPorts = 12768;

// The same port on every rank: kFirstDerivedPort + (FNV-1a(identity) + offset)
// modulo kNumDerivedPorts. Different offsets of one identity never collide;
// different identities may.
uint16_t derived_port(std::string_view identity, uint64_t offset = 0);

// localhost, 127.x.y.z or ::1.
bool is_loopback(std::string_view address);

// The rendezvous of a launcher's ranks when the user gives none.
struct RendezvousDefaults {
  std::string address;  // "": the launcher provides none
  std::optional<uint16_t> port;
  std::string hint;  // what the user can do when one is missing
};

// `init_method` if it is set, else MASTER_ADDR and MASTER_PORT, each before its default;
// kNone for a world of one. ConfigError, which shows `names`: the address or the port is
// missing or broken.
Rendezvous choose_rendezvous(const Variables& variables, const std::optional<Rendezvous>& init_method,
                             int world_size, const RendezvousDefaults& defaults, const Names& names);

// Fills in what follows from the other fields: the host, and the node of a one-node job.
void fill_derived_fields(RankMap& map, const std::string& host);

}  // namespace lockstep::cluster
