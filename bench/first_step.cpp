// Seconds from the first line of main to the end of the first training step, over
// everything between: starting the ranks, connecting them, building the model.
// Prints one JSON line from rank 0.
//
//   LOCKSTEP_NPROCS=2 build/bin/bench/first_step

#include <lockstep/lockstep.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include "models.h"

namespace {

double now_s() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  // The process that starts the ranks sets it first; they inherit it.
  ::setenv("LOCKSTEP_BENCH_START", std::to_string(now_s()).c_str(), /*overwrite=*/0);
  return lockstep::launch(argc, argv, {}, [](lockstep::World& world, const lockstep::TrainConfig&) {
    lockstep::bench::Workload workload = lockstep::bench::make_workload("sine");
    torch::optim::SGD optimizer(workload.model.module()->parameters(), 0.01);
    lockstep::GradientSync gradients(workload.model.module(), world.communicator());
    gradients.prepare_forward();
    workload.loss().backward();
    optimizer.step();
    const double seconds = now_s() - std::atof(std::getenv("LOCKSTEP_BENCH_START"));
    if (world.is_main()) std::printf("{\"value\": %.6f, \"unit\": \"s\"}\n", seconds);
  });
}
