#pragma once

// Starts a program as one rank of a job: under `lockstep run`, torchrun, srun or mpirun, as copies of
// itself with --nprocs, or alone. Every rank gets a World with its number, its device and a
// communicator. Preemption lets a training loop stop at the same step on all ranks, before its job is
// ended.
//
// Example:
//
//   #include <lockstep/launch.h>
//
//   #include <cstdio>
//
//   int main(int argc, char** argv) {
//     return lockstep::launch(argc, argv, {}, [](lockstep::World& world, const lockstep::TrainConfig&) {
//       std::printf("rank %d of %d\n", world.rank(), world.size());
//     });
//   }
//
// More: docs/launch.md

#include <c10/core/Device.h>
#include <lockstep/communicator.h>
#include <lockstep/config.h>
#include <lockstep/error.h>
#include <lockstep/rank_map.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

// One rank's view of its job: its rank, its communicator and its device. launch() makes it; it lives
// until the rank's function returns. One thread at a time.
class World {
 public:
  World(RankMap map, Communicator communicator, c10::Device device)
      : map_(std::move(map)), communicator_(std::move(communicator)), device_(device) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return map_.rank; }
  int size() const { return map_.world_size; }
  int local_rank() const { return map_.local_rank; }
  // Rank 0, which prints and writes.
  bool is_main() const { return map_.rank == 0; }

  const RankMap& map() const { return map_; }
  // All ranks of the job.
  const Communicator& communicator() const { return communicator_; }
  c10::Device device() const { return device_; }
  // The attempt this is, from 0: it grows after a failure, or when nodes join or leave. World size and
  // ranks may differ between attempts.
  int generation() const { return map_.generation; }
  // The threads that can run at once on this rank, by its CPU affinity, its control groups and the
  // other ranks of its node; at least 1.
  int cpu_threads() const;
  // The number of the next training in this world, from 1, the same on all ranks. Each training has its
  // own run folder. Called by Trainer::fit().
  int begin_run() { return ++runs_; }

 private:
  RankMap map_;
  Communicator communicator_;
  c10::Device device_;
  int runs_ = 0;
};

// The size of a job. On CPUs the numbers of GPUs are 0.
struct JobShape {
  int processes = 1;
  int nodes = 1;
  int gpus_per_node = 0;  // of the node that has most
  int gpus = 0;
};

// Counts the nodes and GPUs of all ranks; ranks that share a GPU count it once. Every rank calls it.
// Blocks. ConfigError: this rank trains on a GPU and the CUDA library does not load.
JobShape job_shape(const World& world);

// The name of this rank's device: "NVIDIA H200", or "cpu". ConfigError: this rank trains on a GPU and the
// CUDA library does not load.
std::string device_name(const World& world);

struct PreemptionOptions {
  // Signals that ask the program to save and exit. Empty: SIGTERM, SIGUSR1 and SIGUSR2.
  std::vector<int> signals;
  // How long before the job's time limit requested() becomes true; at most a tenth of the time that is left
  // at construction.
  std::chrono::seconds margin{120};
  // The job's time limit, counted from construction. Unset: Slurm's, if there is one.
  std::optional<std::chrono::seconds> time_limit;
  // About how often the ranks exchange whether one of them must stop.
  std::chrono::milliseconds period{1000};
};

// Agreement of all ranks to stop after the same step, because one of them got a signal (Slurm's
// --signal, a preemption, a signal that `lockstep run` passes on) or because the time limit is near.
//
//   Preemption preemption(world);
//   for (...) {
//     train_step();
//     if (preemption.requested()) {
//       save_checkpoint();
//       preemption.leave();
//     }
//   }
//
// While the object exists, the signals do not end the process. Made and used by one thread.
// Trainer::fit() has one of its own.
class Preemption {
 public:
  // Collective: every rank makes one.
  explicit Preemption(const World& world, PreemptionOptions options = {});
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;
  ~Preemption();

  // Whether all ranks stop here. Collective: every rank calls it after every step. It communicates
  // about once a period, so it is cheap. Stays true once it was true.
  bool requested();
  // The cause, for example "rank 3 got SIGUSR1". REQUIRES: requested() was true.
  const std::string& reason() const;
  // The signal; 0: the time limit. REQUIRES: requested() was true.
  int signal() const;
  // Waits until all ranks are here, so that none is ended while it saves, and throws Preempted.
  // launch() turns that into the exit status kExitPreempted: the launcher does not restart the job, and
  // a batch script can queue it again. Collective.
  [[noreturn]] void leave();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs `rank_main` as one rank of a job and returns the exit status for main(). Blocks until the rank
// has ended, or all ranks that this process started.
//
// Under torchrun, srun, mpirun or `lockstep run` this process joins the job as the rank it was started
// as. Otherwise, with nprocs > 1, it starts nprocs copies of its own program with the same arguments.
// Each copy reaches this same call as a rank, so do little before it. Under Slurm with one task for
// each node it starts the ranks of its node.
//
// An exception of rank_main, or a bad configuration, is reported on standard error with rank and host
// and becomes the exit status. One failed rank ends the job. A ConfigError that all ranks end with
// (missing data, unknown model) is reported once.
int launch(const TrainConfig& config, const std::function<void(World&)>& rank_main);

// The same; flags, variables and the TOML file override the defaults. --help prints the flags.
int launch(int argc, const char* const* argv, const TrainConfig& defaults,
           const std::function<void(World&, const TrainConfig&)>& rank_main);

// The same for a program with options of its own.
int launch(int argc, const char* const* argv, const TrainConfig& defaults, const ProgramOptions& own,
           const std::function<void(World&, const TrainConfig&)>& rank_main);

// Ranks that a program already has, of MPI or of another runtime: mpi.h fills it for an MPI communicator.
struct GivenRanks {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this node
  int local_size = 1;
  std::vector<std::string> hosts;  // the name of the node of each rank
  // Gives rank 0's text to all ranks. Collective; called once, on every rank, if there are several.
  std::function<void(std::string& text)> broadcast;
};

// The world of ranks that the program already has, in place of launch(): nothing is started, and no
// environment variable decides about ranks. Collective; blocks until all ranks have called it. Rank 0 opens a
// port on its node, and gives its address and a secret to the others by `broadcast`. Of the config it takes
// compute_setup, backend and timeout_s. After the death of a rank the others get CommError; what ends the
// program is up to it. ConfigError: the numbers contradict each other; rank 0 has no port.
std::unique_ptr<World> join_ranks(const GivenRanks& ranks, const TrainConfig& config = {});

// Runs `body` and returns its result. An exception is reported on standard error and becomes an exit
// status (lockstep/error.h).
int run_main(const std::function<int()>& body) noexcept;

}  // namespace lockstep
