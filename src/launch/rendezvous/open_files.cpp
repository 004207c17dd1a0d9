#include "launch/rendezvous/open_files.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/resource.h>

#include <algorithm>

namespace lockstep::launcher {
namespace {

// What a launcher has open besides: logs, workers, stores.
constexpr rlim_t kOtherFiles = 256;

}  // namespace

void raise_open_files(const RendezvousOptions& options) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t needed = static_cast<rlim_t>(options.max_nodes) + kOtherFiles;
  if (limit.rlim_max < needed) {
    throw ConfigError("rendezvous", fmt::format("a job of {} nodes needs {} open files, the limit is {}: "
                                                "raise the hard limit (ulimit -Hn)",
                                                options.max_nodes, needed, limit.rlim_max));
  }
  const rlim_t wanted = std::min(limit.rlim_max, 2 * needed + static_cast<rlim_t>(options.max_strangers));
  if (options.max_nodes < 256 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace lockstep::launcher
