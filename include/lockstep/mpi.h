#pragma once

// Lets a program that uses MPI train: the World of an MPI communicator that the program already has, for
// example of a solver that trains a surrogate inside its own loop. This header includes MPI's, and programs
// that include it are linked with MPI; the library is not. lockstep.h leaves it out.
//
// Example:
//
//   #include <lockstep/mpi.h>
//   #include <torch/torch.h>
//
//   int main(int argc, char** argv) {
//     MPI_Init(&argc, &argv);
//     {
//       const auto world = lockstep::mpi_world(MPI_COMM_WORLD);
//       const torch::Tensor sum = torch::ones({3});
//       world->communicator().all_reduce(sum).wait();  // every element is now world->size()
//     }
//     return MPI_Finalize();
//   }
//
// More: docs/exported.md

#include <lockstep/launch.h>

// MPI's bindings for C, not the removed ones for C++, which need a library of their own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

// The world of the ranks of `communicator`, with their numbers: see join_ranks(). Collective over it; blocks
// until all its ranks have called it. MPI must be initialised, and stays the program's.
//
// MPI carries only the first message. Tensors go over shared memory and Gloo, or over NCCL on GPUs, so they
// do not disturb the program's own messages, and MPI_THREAD_SINGLE is enough. With config.backend "mpi" they
// go over MPI: then `communicator` must have all ranks of MPI_COMM_WORLD in their order, and MPI the thread
// level MPI_THREAD_SERIALIZED.
inline std::unique_ptr<World> mpi_world(MPI_Comm communicator, const TrainConfig& config = {}) {
  GivenRanks ranks;
  MPI_Comm_rank(communicator, &ranks.rank);
  MPI_Comm_size(communicator, &ranks.size);
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, ranks.rank, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &ranks.local_rank);
  MPI_Comm_size(node, &ranks.local_size);
  MPI_Comm_free(&node);
  std::array<char, MPI_MAX_PROCESSOR_NAME> own{};
  int length = 0;
  MPI_Get_processor_name(own.data(), &length);
  std::vector<char> names(own.size() * static_cast<size_t>(ranks.size));
  MPI_Allgather(own.data(), MPI_MAX_PROCESSOR_NAME, MPI_CHAR, names.data(), MPI_MAX_PROCESSOR_NAME, MPI_CHAR,
                communicator);
  for (size_t i = 0; i < names.size(); i += own.size()) ranks.hosts.emplace_back(names.data() + i);
  ranks.broadcast = [&](std::string& text) {
    auto bytes = static_cast<int>(text.size());
    MPI_Bcast(&bytes, 1, MPI_INT, 0, communicator);
    text.resize(static_cast<size_t>(bytes));
    MPI_Bcast(text.data(), bytes, MPI_CHAR, 0, communicator);
  };
  return join_ranks(ranks, config);
}

}  // namespace lockstep
