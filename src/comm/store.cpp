#include <fmt/format.h>
#include <lockstep/c10d.h>
#include <lockstep/error.h>
#include <lockstep/rank_map.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace lockstep {
namespace {

std::string expected_host(const RankMap& map) {
  if (map.rendezvous.agent_hosts_store) {
    return "the launcher's agent hosts it";
  }
  return map.rank == 0 ? "this rank, 0, hosts it" : "rank 0 hosts it";
}

c10::intrusive_ptr<c10d::Store> open_tcp_store(const RankMap& map, std::chrono::milliseconds timeout) {
  const Rendezvous& meeting = map.rendezvous;
  c10d::TCPStoreOptions options;
  options.port = meeting.port;
  options.isServer = map.rank == 0 && !meeting.agent_hosts_store;
  options.numWorkers = static_cast<size_t>(map.world_size);
  options.timeout = timeout;
  if (options.isServer && meeting.listen_fd >= 0) {
    options.masterListenFd = meeting.listen_fd;
  }
  try {
    return c10::make_intrusive<c10d::TCPStore>(meeting.address, options);
  } catch (const c10::Error& error) {
    std::string reason = error.what_without_backtrace();
    reason.resize(std::min(reason.find('\n'), reason.size()));
    throw CommError(
        "store",
        fmt::format("rank {} of {} could not meet the others at address '{}' port {} within {} ms ({}; is it "
                    "started, and is the port reachable from here?): {}",
                    map.rank, map.world_size, meeting.address, meeting.port, timeout.count(),
                    expected_host(map), reason),
        CommError::Recovery::kFatal);
  }
}

c10::intrusive_ptr<c10d::Store> open_file_store(const RankMap& map, std::chrono::milliseconds timeout) {
  const std::string& path = map.rendezvous.path;
  c10::intrusive_ptr<c10d::Store> store;
  try {
    store = c10::make_intrusive<c10d::FileStore>(path, map.world_size);
    store->setTimeout(timeout);
    // A file that an earlier job left behind would hand out that job's addresses.
    if (const int64_t joined = store->add(fmt::format("lockstep/joined/{}", map.restart_count), 1);
        joined > map.world_size) {
      throw ConfigError("store",
                        fmt::format("rendezvous file was used by another job, remove it: {} ranks joined "
                                    "a job of {} at {}",
                                    joined, map.world_size, path));
    }
  } catch (const c10::Error& error) {
    throw ConfigError("store", fmt::format("rendezvous file cannot be used by rank {}: {}: {}", map.rank,
                                           path, error.what_without_backtrace()));
  }
  return store;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const RankMap& map, std::chrono::milliseconds timeout) {
  switch (map.rendezvous.kind) {
    case Rendezvous::Kind::kTcp: return open_tcp_store(map, timeout);
    case Rendezvous::Kind::kFile: return open_file_store(map, timeout);
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
