#pragma once

#include <mpi.h>

#include <atomic>
#include <vector>

namespace lockstep::comm {

// An MPI communicator of our own for some ranks of the job. Initialises MPI if
// nobody has; then MPI is finalised when the process exits, unless something failed.
class MpiGroup {
 public:
  // Collective over `job_ranks`. ConfigError: MPI's own world is not the job's, as
  // when the program was not started by mpirun.
  MpiGroup(int rank, const std::vector<int>& job_ranks);
  // Frees the communicator; not after a failure, where the others may be gone.
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  MPI_Comm communicator() const { return communicator_; }

  // Makes pending and later operations throw. From any thread.
  void mark_broken();
  bool is_broken() const { return broken_; }

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::atomic<bool> broken_ = false;
};

}  // namespace lockstep::comm
