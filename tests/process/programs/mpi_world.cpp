// The worlds of two MPI communicators that a program has split itself, whose ranks are in the reverse order.
//
//   mpirun -n N mpi_world [BACKEND]
//
// Prints "ok RANK of SIZE" for each process, or what went wrong and ends with status 1.

#include <lockstep/lockstep.h>
#include <lockstep/mpi.h>
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::logic_error(what);
}

void check(MPI_Comm ranks, const std::string& backend) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(ranks, &rank);
  MPI_Comm_size(ranks, &size);
  const auto world = lockstep::mpi_world(ranks, {.compute_setup = "cpu", .backend = backend});
  expect(world->rank() == rank && world->size() == size, "the ranks are MPI's");
  const at::Tensor sum = torch::full({1000}, rank + 1.0);
  world->communicator().all_reduce(sum).wait();
  expect(sum.eq(size * (size + 1) / 2.0).all().item<bool>(), "all_reduce");

  // A training over memory that is the program's: its parameters, gradients and batches stay where they are.
  std::vector<float> weights(3, 0.5F);
  std::vector<float> rows(30, static_cast<float>(rank + 1));
  const auto net = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(3, 1).bias(false));
  net->weight.set_data(torch::from_blob(weights.data(), {1, 3}));
  lockstep::GradientSync gradients(net, world->communicator());
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  gradients.prepare_forward();
  const at::Tensor batch = torch::from_blob(rows.data(), {10, 3});
  net->forward(batch).mean().backward();
  optimizer.step();
  const float expected = 0.5F - 0.01F * static_cast<float>(size + 1) / 2;
  for (const float weight : weights)
    expect(std::abs(weight - expected) < 1e-6F, "the weights are the program's");
  expect(net->weight.data_ptr<float>() == weights.data(), "the parameters stay where they are");
  expect(world->communicator().rank() == rank, "the communicator has MPI's rank");
  std::printf("ok %d of %d %s\n", rank, size, world->communicator().backend().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string backend = argc > 1 ? argv[1] : "auto";
  int provided = 0;
  // The default backend does not call MPI, so one thread is enough.
  MPI_Init_thread(&argc, &argv, backend == "mpi" ? MPI_THREAD_SERIALIZED : MPI_THREAD_SINGLE, &provided);
  const int status = lockstep::run_main([&] {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (backend == "mpi") {
      check(MPI_COMM_WORLD, backend);
      return 0;
    }
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &part);
    check(part, backend);
    MPI_Comm_free(&part);
    return 0;
  });
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return status;
}
