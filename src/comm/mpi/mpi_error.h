#pragma once

#include <mpi.h>

namespace lockstep::comm {

// Throws a std::runtime_error with MPI's text and the call, unless it succeeded.
void check_mpi(int code, const char* call);

}  // namespace lockstep::comm
