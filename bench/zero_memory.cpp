// Memory of one rank that trains with divided states: the most that its tensors take
// between construction and the end of the last step, in bytes a parameter. Prints one JSON
// line from rank 0.
//
//   LOCKSTEP_NPROCS=4 LOCKSTEP_BACKEND=gloo build/bin/bench/zero_memory STAGE

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "train/measured_memory.h"

namespace {

// Many small units: what is whole at a time is little against the whole.
constexpr int64_t kWidth = 256;
constexpr int kLayers = 256;
constexpr int kSteps = 4;

struct LayerImpl : torch::nn::Module {
  LayerImpl()
      : fc(register_module("fc", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(fc(x)); }
  torch::nn::Linear fc;
};
using Layer = lockstep::Sharded<LayerImpl>;

void run(const lockstep::World& world, int stage) {
  const lockstep::train::CountedMemory memory;
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) net->push_back(Layer());
  int64_t parameters = 0;
  for (const torch::Tensor& parameter : net->parameters()) parameters += parameter.numel();
  const auto optimizer = lockstep::make_cpu_adam(net->parameters(), {.lr = 1e-3});
  net->to(torch::kBFloat16);
  const torch::Tensor x = torch::rand({1, kWidth}, torch::kBFloat16);
  memory.reset_peak();  // the model came in float32

  lockstep::ShardedOptions options;
  options.zero.stage = stage;
  options.zero.bucket_cap_bytes = kWidth * kWidth * 2;
  options.zero.persistence_threshold = 0;
  lockstep::ShardedModel model(net.ptr(), *optimizer, world.communicator(), options);
  for (int i = 0; i < kSteps; ++i) {
    model.zero_grad();
    model.prepare_forward();
    net->forward(x).square().mean().backward();
    model.step();
  }
  const auto most = torch::tensor({memory.peak_bytes()});
  world.communicator().all_reduce(most, lockstep::ReduceOp::kMax).wait();
  if (!world.is_main()) return;
  std::printf("{\"value\": %.6g, \"unit\": \"bytes/parameter\", \"planned\": %.6g, \"held\": %.6g}\n",
              static_cast<double>(most.item<int64_t>()) / static_cast<double>(parameters),
              static_cast<double>(model.memory().total()) / static_cast<double>(parameters),
              static_cast<double>(memory.live_bytes()) / static_cast<double>(parameters));
}

}  // namespace

int main(int argc, char** argv) {
  const char* program[] = {argv[0]};
  return lockstep::launch(1, program, {}, [&](lockstep::World& world, const lockstep::TrainConfig&) {
    if (argc != 2) throw lockstep::ConfigError("bench", "usage: zero_memory STAGE");
    run(world, std::atoi(argv[1]));
  });
}
