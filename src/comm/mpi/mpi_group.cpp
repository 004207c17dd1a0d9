#include "comm/mpi/mpi_group.h"

#include <fmt/ranges.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cstdlib>

#include "comm/mpi/mpi_error.h"

namespace lockstep::comm {
namespace {

// Finalising waits for all ranks: not for those that are gone.
std::atomic<bool>& may_finalize() {
  static std::atomic<bool> flag = true;
  return flag;
}

void finalize() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && may_finalize()) {
    MPI_Finalize();
  }
}

void initialize() {
  int initialized = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized != 0) {
    return;
  }
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) {
    throw ConfigError(
        "mpi",
        "this MPI cannot be called from more than one thread, even one at a time: set backend to gloo");
  }
  std::atexit(finalize);
}

void check_world(int job_rank, int highest_job_rank) {
  int rank = 0;
  int size = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (rank != job_rank || highest_job_rank >= size) {
    throw ConfigError(
        "mpi", fmt::format("MPI's world is not this job's, start the job with mpirun or srun --mpi: MPI "
                           "says rank {} of {}, the job says rank {} and has a rank {}",
                           rank, size, job_rank, highest_job_rank));
  }
}

}  // namespace

MpiGroup::MpiGroup(int rank, const std::vector<int>& job_ranks) {
  initialize();
  check_world(job_ranks.at(static_cast<size_t>(rank)), *std::max_element(job_ranks.begin(), job_ranks.end()));
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(world, static_cast<int>(job_ranks.size()), job_ranks.data(), &members),
            "MPI_Group_incl");
  const int code = MPI_Comm_create_group(MPI_COMM_WORLD, members, /*tag=*/0, &communicator_);
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  check_mpi(code, "MPI_Comm_create_group");
  check_mpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiGroup::~MpiGroup() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && !broken_) {
    MPI_Comm_free(&communicator_);
  }
}

void MpiGroup::mark_broken() {
  broken_ = true;
  may_finalize() = false;
}

}  // namespace lockstep::comm
