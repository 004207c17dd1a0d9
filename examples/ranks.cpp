// Says where every rank of a job is and that it can compute and communicate: the
// first thing to run on a new cluster.
//
//   build/bin/ranks --nprocs 2
//   srun --ntasks 2 build/bin/ranks
//
// prints what Princeton's debugging program prints at its start, and a line for each rank, in their order:
//
//   Number of allocated GPUs per node is 0.
//   Running basic DDP example on rank 0.
//   Running basic DDP example on rank 1.
//   group initialized? True
//   host=node01 rank=0 world_size=2 local_rank=0 device=cpu launcher=lockstep ...
//   host=node01 rank=1 world_size=2 local_rank=1 device=cpu launcher=lockstep ...

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <sstream>

namespace {

// Princeton's debugging network: one layer, the same on all ranks by data parallelism, and one random row.
torch::Tensor tiny_forward(const lockstep::World& world) {
  torch::nn::Linear layer(42, 3);
  layer->to(world.device());
  lockstep::DataParallel model(layer, world.communicator());
  model->eval();
  const torch::NoGradGuard no_grad;
  return torch::log_softmax(torch::relu(model.forward(torch::rand({1, 42}, world.device()))), 1).cpu();
}

void print_start(const lockstep::JobShape& shape) {
  std::printf("Number of allocated GPUs per node is %d.\n", shape.gpus_per_node);
  for (int rank = 0; rank < shape.processes; ++rank) {
    std::printf("Running basic DDP example on rank %d.\n", rank);
  }
  std::puts("group initialized? True");
  std::fflush(stdout);
}

std::string describe(const lockstep::World& world) {
  const torch::Tensor output = tiny_forward(world).flatten();
  char values[64];
  std::snprintf(values, sizeof values, "[%.2f, %.2f, %.2f]", output[0].item<float>(), output[1].item<float>(),
                output[2].item<float>());
  std::ostringstream line;
  line << "host=" << world.map().host << " rank=" << world.rank() << " world_size=" << world.size()
       << " local_rank=" << world.local_rank() << " device=" << world.device()
       << " launcher=" << lockstep::to_string(world.map().launcher)
       << " backend=" << world.communicator().backend() << " output=" << values;
  return line.str();
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::launch(argc, argv, {}, [](lockstep::World& world, const lockstep::TrainConfig&) {
    const lockstep::JobShape shape = lockstep::job_shape(world);
    if (world.is_main()) print_start(shape);
    torch::manual_seed(world.rank());
    const std::vector<std::string> lines = world.communicator().all_gather_bytes(describe(world));
    if (!world.is_main()) return;
    for (const std::string& line : lines) std::puts(line.c_str());
  });
}
