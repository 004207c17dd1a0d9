// Steps until it is asked to stop, then saves: a line in FILE for each rank.
//
//   lockstep run -n 2 preempted_rank FILE

#include <fmt/format.h>
#include <lockstep/lockstep.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

int main(int, char** argv) {
  return lockstep::launch({.compute_setup = "cpu"}, [&](lockstep::World& world) {
    lockstep::Preemption preemption(world, {.period = std::chrono::milliseconds(20)});
    std::printf("pid %d\n", ::getpid());
    std::fflush(stdout);
    for (int step = 1;; ++step) {
      // Ranks of different speed must stop at the same step all the same.
      std::this_thread::sleep_for(std::chrono::microseconds(100 * (1 + world.rank())));
      if (!preemption.requested()) continue;
      std::ofstream(argv[1], std::ios::app)
          << fmt::format("{} {} {}\n", world.rank(), step, preemption.reason());
      preemption.leave();
    }
  });
}
