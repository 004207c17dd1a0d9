#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

// How a program runs and trains. Set it in code with designated initialisers, and
// from the command line with from_args(): every field has a flag of its name
// (--max_iter, or --max-iter) and a variable (LOCKSTEP_MAX_ITER). The command line
// wins over the variable, the variable over the code.
struct TrainConfig {
  // --- processes ---

  // Ranks over all nodes. Unset: what the launcher started, else 1.
  std::optional<int> nprocs;
  // cpu, gpu, or auto: gpu where one is found.
  std::string compute_setup = "auto";
  // gloo, nccl, mpi, shm, fake, or auto: nccl on GPUs; on CPUs shared memory inside
  // a host and Gloo between hosts.
  std::string backend = "auto";
  // Where ranks meet: env://, tcp://host:port or file:///path. Unset: env://.
  std::optional<std::string> init_method;
  // How long, in seconds, a collective waits for a peer before the job fails.
  int timeout_s = 600;

  // --- training ---

  // Epochs: exactly this many.
  int64_t max_iter = 10000;
  // float32, float64, bfloat16 or float16: of the parameters and of floating-point
  // inputs.
  std::string dtype = "float32";
  // Of the initial weights (launch() seeds every rank alike), of shuffling (added to
  // the loader's own seed), and, plus the rank, of each rank's stream from fit() on.
  uint64_t seed = 0;

  // --- output ---

  // Epochs between two printed lines; 0: none.
  int64_t print_every = 0;
  // Rank 0 prints. true: every rank prints its line, with its own loss.
  bool print_all_ranks = false;
  // Parent of the run folders.
  std::string root_folder = "./runs";
  // false: no printed lines and no summary.
  bool verbose = true;

  // Reads flags and variables over these defaults. ConfigError: an unknown flag or a
  // bad value; HelpRequested: --help.
  static TrainConfig from_args(int argc, const char* const* argv, const TrainConfig& defaults);
  static TrainConfig from_args(int argc, const char* const* argv);

  // ConfigError names the first field with a value that is not allowed.
  void validate() const;

  // All fields, resolved, as a JSON object.
  std::string to_json() const;
};

}  // namespace lockstep
