#include "comm/mpi/mpi_error.h"

#include <fmt/format.h>

#include <stdexcept>

namespace lockstep::comm {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) {
    return;
  }
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(fmt::format("{}: {}", call, text));
}

}  // namespace lockstep::comm
