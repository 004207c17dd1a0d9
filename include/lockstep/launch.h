#pragma once

// Starting a program on its ranks: under `lockstep run`, torchrun, srun and mpirun, by --nprocs, or alone.
//
//   int main(int argc, char** argv) {
//     return lockstep::launch(argc, argv, {.max_iter = 50}, [](lockstep::World& world, const auto& config) {
//       ...
//     });
//   }

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

// What a rank knows of its job: who it is, how to reach the others, which device
// is its own. launch() makes it; it lives until the rank's function returns.
class World {
 public:
  World(RankMap map, Communicator communicator, c10::Device device)
      : map_(std::move(map)), communicator_(std::move(communicator)), device_(device) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return map_.rank; }
  int size() const { return map_.world_size; }
  int local_rank() const { return map_.local_rank; }
  // Rank 0: the one that prints and writes.
  bool is_main() const { return map_.rank == 0; }

  const RankMap& map() const { return map_; }
  const Communicator& communicator() const { return communicator_; }
  c10::Device device() const { return device_; }
  // Which life of the job's ranks this is: 0, 1, ... after a failure, or when nodes came
  // or went. World size and ranks may have changed.
  int generation() const { return map_.generation; }
  // The threads that can run at once on this rank, by its CPU affinity, its control groups and the
  // other ranks of its node; at least 1.
  int cpu_threads() const;
  // Counts the trainings of this world, from 1, the same on all ranks: each has a run
  // folder of its own.
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

struct PreemptionOptions {
  // What asks this program to save and leave. Empty: SIGTERM, SIGUSR1 and SIGUSR2.
  std::vector<int> signals;
  // How long before the end of the job it is time to leave.
  std::chrono::seconds margin{120};
  // The job's time limit, from now on, where Slurm does not tell it.
  std::optional<std::chrono::seconds> time_limit;
  // About how often the ranks ask each other.
  std::chrono::milliseconds period{1000};
};

// Agreement of all ranks to stop at the same step: because one of them got a signal
// (Slurm's --signal, a preemption, `lockstep run` passing one on), or because the time
// limit comes near.
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
// While it lives the signals do not end the process. Made and used by one thread.
class Preemption {
 public:
  explicit Preemption(const World& world, PreemptionOptions options = {});
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;
  ~Preemption();

  // Whether all ranks stop here. Collective: every rank calls it after every step. It
  // asks the others only about once a period, so it costs next to nothing. Once true
  // it stays true.
  bool requested();
  // Why: "rank 3 got SIGUSR1". REQUIRES: requested() was true.
  const std::string& reason() const;
  // The signal that asked; 0: the time limit. REQUIRES: requested() was true.
  int signal() const;
  // Waits until all ranks have come here, so that nobody is ended while it saves, and
  // throws Preempted, which launch() turns into the exit status kExitPreempted: the
  // launcher does not restart the job, a batch script puts it into the queue again.
  [[noreturn]] void leave();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

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
