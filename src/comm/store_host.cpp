#include "comm/store_host.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "base/host_lookup.h"

namespace lockstep::comm {
namespace {

// The numbers of glog's levels, which LibTorch has also where it has no glog.
constexpr int kFatalLevel = 3;

// What the user changes, by what has started the ranks.
const char* host_remedy(Launcher launcher) {
  switch (launcher) {
    case Launcher::kLockstep: return "set --local-addr of lockstep run on node 0, or --master-addr,";
    case Launcher::kTorchrun:
      return "set MASTER_ADDR, torchrun's --master-addr or its --local-addr on node 0,";
    case Launcher::kExplicit: return "set MASTER_ADDR, or the host of init_method,";
    case Launcher::kSlurm:
    case Launcher::kMpi:
    case Launcher::kSingle: break;
  }
  return "set MASTER_ADDR";
}

bool is_set(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr && *text != '\0';
}

// LibTorch's level is one for the process, and ranks may be threads of it.
struct Quiet {
  std::mutex mutex;
  int holders = 0;
  int level_before = 0;
};

Quiet& quiet() {
  static Quiet the_only;
  return the_only;
}

}  // namespace

void check_store_host(const RankMap& map, std::chrono::milliseconds timeout) {
  const Rendezvous& meeting = map.rendezvous;
  const std::optional<std::string> unknown =
      base::find_unknown_host(meeting.address, std::min(timeout, base::kHostPatience));
  if (!unknown) return;
  throw ConfigError(
      "store",
      fmt::format("rank {} of {} is to meet the others at host '{}' port {}, which {} does not "
                  "know ({}): {} to a name or an address of rank 0's node that every node knows",
                  map.rank, map.world_size, meeting.address, meeting.port,
                  map.host.empty() ? "this machine" : map.host, *unknown, host_remedy(map.launcher)));
}

QuietC10d::QuietC10d() {
  const std::lock_guard lock(quiet().mutex);
  if (quiet().holders++ > 0) return;
  quiet().level_before = FLAGS_caffe2_log_level;
  if (is_set("TORCH_CPP_LOG_LEVEL")) {
    // Outside Python nobody else reads it.
    c10::initLogging();
    quiet().level_before = FLAGS_caffe2_log_level;
  } else if (!is_set("TORCH_DISTRIBUTED_DEBUG")) {
    FLAGS_caffe2_log_level = std::max<int>(FLAGS_caffe2_log_level, kFatalLevel);
  }
}

QuietC10d::~QuietC10d() {
  const std::lock_guard lock(quiet().mutex);
  if (--quiet().holders == 0) FLAGS_caffe2_log_level = quiet().level_before;
}

}  // namespace lockstep::comm
