// c10d's own stores, for jobs with Python ranks and for rendezvous files.

#include <c10/util/Logging.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/c10d.h>
#include <lockstep/error.h>
#include <lockstep/rank_map.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <thread>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "comm/failure.h"
#include "comm/job_store.h"
#include "comm/transport.h"

namespace lockstep {
namespace {

std::string expected_host(const RankMap& map) {
  if (map.rendezvous.agent_hosts_store) return "the launcher's agent hosts it";
  return map.rank == 0 ? "this rank, 0, hosts it" : "rank 0 hosts it";
}

// Silences c10d's warnings and errors while an object of this class exists: c10d prints one for
// each attempt to connect, and the exception has their text. TORCH_CPP_LOG_LEVEL or
// TORCH_DISTRIBUTED_DEBUG, if set, decides instead.
class QuietC10d {
 public:
  QuietC10d() {
    Level& level = of_process();
    const base::MutexLock lock(level.mutex);
    if (level.holders++ > 0) return;
    level.before = FLAGS_caffe2_log_level;
    if (is_set("TORCH_CPP_LOG_LEVEL")) {
      // Only Python reads the variable by itself.
      c10::initLogging();
      level.before = FLAGS_caffe2_log_level;
    } else if (!is_set("TORCH_DISTRIBUTED_DEBUG")) {
      FLAGS_caffe2_log_level = std::max<int>(FLAGS_caffe2_log_level, kFatalLevel);
    }
  }
  ~QuietC10d() {
    Level& level = of_process();
    const base::MutexLock lock(level.mutex);
    if (--level.holders == 0) FLAGS_caffe2_log_level = level.before;
  }
  QuietC10d(const QuietC10d&) = delete;
  QuietC10d& operator=(const QuietC10d&) = delete;

 private:
  // The number of glog's level, which LibTorch uses without glog too.
  static constexpr int kFatalLevel = 3;

  // A process has one level, and ranks may be threads of one process.
  struct Level {
    base::Mutex mutex;
    int holders LOCKSTEP_GUARDED_BY(mutex) = 0;
    int before LOCKSTEP_GUARDED_BY(mutex) = 0;
  };

  static Level& of_process() {
    static Level level;
    return level;
  }

  static bool is_set(const char* variable) {
    const char* text = std::getenv(variable);
    return text != nullptr && *text != '\0';
  }
};

using TcpStorePtr = c10::intrusive_ptr<c10d::TCPStore>;

// c10d waits without a limit for the greeting of whatever listens at the address. If it never
// comes, the thread is left behind: the program is about to end.
TcpStorePtr make_tcp_store(const std::string& address, const c10d::TCPStoreOptions& options) {
  std::packaged_task<TcpStorePtr()> task(
      [address, options] { return c10::make_intrusive<c10d::TCPStore>(address, options); });
  std::future<TcpStorePtr> store = task.get_future();
  std::thread(std::move(task)).detach();
  // c10d's own timeout comes first: its text says more.
  constexpr std::chrono::seconds kGrace{2};
  if (store.wait_for(options.timeout + kGrace) != std::future_status::ready) {
    throw std::runtime_error("something listens there, but does not answer as a store does");
  }
  return store.get();
}

c10::intrusive_ptr<c10d::Store> open_tcp_store(const RankMap& map, std::chrono::milliseconds timeout) {
  const Rendezvous& rendezvous = map.rendezvous;
  c10d::TCPStoreOptions options;
  options.port = rendezvous.port;
  options.isServer = map.rank == 0 && !rendezvous.agent_hosts_store;
  options.numWorkers = static_cast<size_t>(map.world_size);
  options.timeout = timeout;
  if (options.isServer && rendezvous.listen_fd >= 0) {
    options.masterListenFd = rendezvous.listen_fd;
  }
  comm::check_store_host(map, timeout);
  const QuietC10d quiet;
  try {
    return make_tcp_store(rendezvous.address, options);
  } catch (const std::exception& error) {
    throw CommError(
        "store",
        fmt::format("rank {} of {} could not meet the others at address '{}' port {} within {} ms ({}; is it "
                    "started, and is the port reachable from here?): {}",
                    map.rank, map.world_size, rendezvous.address, rendezvous.port, timeout.count(),
                    expected_host(map), comm::first_line_of(error)),
        CommError::Recovery::kFatal);
  }
}

c10::intrusive_ptr<c10d::Store> open_file_store(const RankMap& map, std::chrono::milliseconds timeout) {
  const std::string& path = map.rendezvous.path;
  c10::intrusive_ptr<c10d::Store> store;
  // c10d would create a file that all users can read, with the addresses and the secret of the
  // ranks.
  base::UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)).reset();
  try {
    store = c10::make_intrusive<c10d::FileStore>(path, map.world_size);
    store->setTimeout(timeout);
    // A file that an earlier job left would have that job's addresses.
    if (const int64_t joined = store->add(fmt::format("lockstep/joined/{}", map.generation), 1);
        joined > map.world_size) {
      throw ConfigError("store",
                        fmt::format("rendezvous file was used by another job, remove it: {} ranks joined "
                                    "a job of {} at {}",
                                    joined, map.world_size, path));
    }
  } catch (const c10::Error& error) {
    throw ConfigError("store", fmt::format("rendezvous file cannot be used by rank {}: {}: {}", map.rank,
                                           path, comm::first_line_of(error)));
  }
  return store;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const RankMap& map, std::chrono::milliseconds timeout) {
  switch (map.rendezvous.kind) {
    case Rendezvous::Kind::kTcp: return open_tcp_store(map, comm::bounded(timeout));
    case Rendezvous::Kind::kFile: return open_file_store(map, comm::bounded(timeout));
    case Rendezvous::Kind::kNone: break;
  }
  throw ConfigError("store",
                    fmt::format("a job of {} ranks has no rendezvous: give MASTER_ADDR and MASTER_PORT, "
                                "or an init method tcp://host:port or file:///path",
                                map.world_size));
}

c10::intrusive_ptr<c10d::Store> python_default_group(c10::intrusive_ptr<c10d::Store> store) {
  // Group "default_pg", name 0, device cpu; torch/distributed/distributed_c10d.py.
  return c10::make_intrusive<c10d::PrefixStore>("default_pg/0//cpu/", std::move(store));
}

}  // namespace lockstep
