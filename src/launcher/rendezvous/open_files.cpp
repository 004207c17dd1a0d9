#include "launcher/rendezvous/open_files.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

#include "base/folder.h"

namespace lockstep::launcher {
namespace {

// Files of a launcher besides its connections: logs, workers, stores.
constexpr rlim_t kOtherFiles = 256;
// Enough for a large node. The default soft limit of 1024 exists for programs that use select(2).
constexpr rlim_t kWantedFiles = 65536;
// Allowed in any case: the launchers of the job are strangers too, for some milliseconds.
constexpr int64_t kFewStrangers = 4;

int64_t count_open_files() {
  const base::FolderStream folder(::opendir("/proc/self/fd"));
  int64_t count = 0;
  while (folder && ::readdir(folder.get()) != nullptr) ++count;
  return count;
}

void raise_to(rlimit limit, rlim_t wanted) {
  wanted = std::min(limit.rlim_max, wanted);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

void raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) raise_to(limit, kWantedFiles);
}

void raise_open_files(const RendezvousOptions& options) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t needed = static_cast<rlim_t>(options.max_nodes) + kOtherFiles;
  if (limit.rlim_max < needed) {
    throw ConfigError("rendezvous", fmt::format("a job of {} nodes needs {} open files, the limit is {}: "
                                                "raise the hard limit (ulimit -Hn)",
                                                options.max_nodes, needed, limit.rlim_max));
  }
  raise_to(limit, std::max(kWantedFiles, 2 * needed + static_cast<rlim_t>(options.max_strangers)));
}

int max_strangers_now(const RendezvousOptions& options, int strangers) {
  // All launchers of the job may connect at once.
  const int64_t wanted = static_cast<int64_t>(options.max_strangers) + options.max_nodes;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return static_cast<int>(wanted);
  const auto files = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT32_MAX));
  const int64_t room = files - (count_open_files() - strangers) - static_cast<int64_t>(kOtherFiles);
  return static_cast<int>(std::min(wanted, std::max(kFewStrangers, room)));
}

}  // namespace lockstep::launcher
