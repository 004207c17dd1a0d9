// Rank 1 comes to the second collective only after a signal, or never: USR1 lets it go.
//
//   lockstep run -n 2 --stall-timeout 1 stalling_rank

#include <lockstep/lockstep.h>
#include <signal.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  // Blocked before any thread exists, so that only sigwait() takes it.
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return lockstep::launch({.compute_setup = "cpu"}, [&](lockstep::World& world) {
    const at::Tensor tensor = torch::ones({4});
    world.communicator().all_reduce(tensor).wait();
    const bool again = world.generation() > 0;
    if (world.rank() == 1 && !again) {
      int signal = 0;
      ::sigwait(&set, &signal);
    }
    world.communicator().all_reduce(tensor).wait();
    std::printf("rank %d done in life %d\n", world.rank(), world.generation());
  });
}
