#include <lockstep/train_config.h>

#include "config/option_table.h"

namespace lockstep {
namespace {

config::OptionTable table_of(TrainConfig& config) {
  config::OptionTable table("A training program on Lockstep.");
  table
      .add("nprocs", config.nprocs, "ranks over all nodes; unset: what the launcher started, else 1",
           {.minimum = 1})
      .add("compute_setup", config.compute_setup, "device", {.choices = {"cpu", "gpu", "auto"}})
      .add("backend", config.backend, "collectives",
           {.choices = {"auto", "gloo", "nccl", "mpi", "shm", "fake"}})
      .add("init_method", config.init_method, "where ranks meet: env://, tcp://host:port, file:///path")
      .add("timeout_s", config.timeout_s, "seconds that a collective waits for a peer", {.minimum = 1})
      .add("max_iter", config.max_iter, "epochs", {.minimum = 0})
      .add("dtype", config.dtype, "of parameters and inputs",
           {.choices = {"float32", "float64", "bfloat16", "float16"}})
      .add("seed", config.seed, "of weights, shuffling and random streams")
      .add("print_every", config.print_every, "epochs between two printed lines; 0: none", {.minimum = 0})
      .add("print_all_ranks", config.print_all_ranks, "every rank prints its own loss")
      .add("root_folder", config.root_folder, "parent of the run folders")
      .add("verbose", config.verbose, "print lines and the summary");
  return table;
}

}  // namespace

TrainConfig TrainConfig::from_args(int argc, const char* const* argv, const TrainConfig& defaults) {
  TrainConfig config = defaults;
  table_of(config).parse(argc, argv);
  return config;
}

TrainConfig TrainConfig::from_args(int argc, const char* const* argv) {
  return from_args(argc, argv, TrainConfig{});
}

void TrainConfig::validate() const {
  TrainConfig copy = *this;
  table_of(copy).validate();
}

std::string TrainConfig::to_json() const {
  TrainConfig copy = *this;
  return table_of(copy).to_json().dump(2);
}

}  // namespace lockstep
