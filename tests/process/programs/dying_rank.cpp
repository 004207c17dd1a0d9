// Trains a small model on the ranks of a job, in which one rank is killed with
// SIGKILL at an exact place.
//
//   dying_rank BACKEND RANK PHASE      PHASE: forward, backward, collective, between, never
//
// Every rank prints "rank R pid P" before its first step; a survivor whose step
// throws CommError prints "rank R lost F" with the rank it blames.

#include <lockstep/lockstep.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr int kDeadlyStep = 3;

struct Death {
  int rank;
  std::string phase;
};

class Victim {
 public:
  Victim(const lockstep::World& world, Death death) : world_(world), death_(std::move(death)) {}

  void next_step() { ++step_; }
  void reach(const std::string& phase) const {
    if (step_ == kDeadlyStep && world_.rank() == death_.rank && phase == death_.phase)
      ::kill(::getpid(), SIGKILL);
  }

 private:
  const lockstep::World& world_;
  Death death_;
  int step_ = 0;
};

// Dies when the bucket is full and its collective started, so that peers are in it.
lockstep::GradientHook hook_of(const Victim& victim) {
  return [&victim](const lockstep::GradientBucket& bucket, const lockstep::Communicator& communicator) {
    lockstep::PendingReduction pending;
    pending.work = communicator.all_reduce(bucket.gradients, lockstep::ReduceOp::kMean);
    victim.reach("collective");
    return pending;
  };
}

void train(const lockstep::World& world, const Death& death) {
  Victim victim(world, death);
  torch::nn::Linear first(8, 8);
  torch::nn::Linear second(8, 1);
  torch::nn::Sequential model(first, second);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  lockstep::GradientSync gradients(model.ptr(), world.communicator(), {.hook = hook_of(victim)});
  std::printf("rank %d pid %d\n", world.rank(), ::getpid());
  std::fflush(stdout);
  // A test that ends the job itself needs it to run for long.
  if (std::getenv("LOCKSTEP_TEST_HOLD") != nullptr) ::pause();
  for (int i = 0; i < 2 * kDeadlyStep; ++i) {
    victim.next_step();
    gradients.zero_grad();
    gradients.prepare_forward();
    const torch::Tensor hidden = first->forward(torch::rand({4, 8}));
    victim.reach("forward");
    hidden.register_hook([&victim](const torch::Tensor&) { victim.reach("backward"); });
    second->forward(hidden).sum().backward();
    optimizer.step();
    victim.reach("between");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  lockstep::TrainConfig config;
  config.backend = argv[1];
  config.compute_setup = "cpu";
  config.timeout_s = 20;
  config.nprocs = 3;
  return lockstep::launch(config, [&](lockstep::World& world) {
    try {
      train(world, {std::stoi(argv[2]), argv[3]});
    } catch (const lockstep::CommError& error) {
      std::printf("rank %d lost %d\n", world.rank(), error.failed_rank().value_or(-1));
      std::fflush(stdout);
      throw;
    }
  });
}
