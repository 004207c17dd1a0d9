#include "comm/transport.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include "comm/fake/fake_backend.h"
#include "comm/gloo/gloo_backend.h"

namespace lockstep::comm {
namespace {

Transport make_gloo(const TransportRequest& request) {
  const GlooOptions options{request.options.timeout, request.options.connect_timeout,
                            request.options.interface, request.rendezvous_address};
  return {make_gloo_backend(request.store, request.rank, request.size, options), "gloo",
          Transport::Devices::kAny};
}

Transport make_fake(const TransportRequest& request, const char* name) {
  return {c10::make_intrusive<FakeBackend>(request.rank, request.size), name, Transport::Devices::kAny};
}

}  // namespace

Transport make_transport(const TransportRequest& request) {
  const std::string& name = request.options.backend;
  if (name == "fake") {
    return make_fake(request, "fake");
  }
  if (name == "auto" && request.size == 1) {
    return make_fake(request, "none");
  }
  if (name == "gloo" || name == "auto") {
    return make_gloo(request);
  }
  throw ConfigError("comm",
                    fmt::format("backend is not one of auto, gloo, nccl, mpi, shm, fake: '{}'", name));
}

}  // namespace lockstep::comm
