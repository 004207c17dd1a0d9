#include "comm/mpi/mpi_backend.h"
#include "comm/plugin.h"

extern "C" __attribute__((visibility("default"))) void lockstep_make_backend(
    const lockstep::comm::PluginRequest& request, c10::intrusive_ptr<c10d::Backend>& result) {
  result = c10::make_intrusive<lockstep::comm::MpiBackend>(request.rank, request.job_ranks, request.timeout);
}

// The type that the loader casts to is the type above.
static lockstep::comm::PluginMakeBackend* const kMakeBackend [[maybe_unused]] = &lockstep_make_backend;
