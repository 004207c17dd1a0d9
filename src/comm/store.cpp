#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/c10d.h>
#include <lockstep/error.h>
#include <lockstep/rank_map.h>

#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/unique_fd.h"
#include "comm/store_host.h"
#include "comm/transport.h"

namespace lockstep {
namespace {

std::string expected_host(const RankMap& map) {
  if (map.rendezvous.agent_hosts_store) {
    return "the launcher's agent hosts it";
  }
  return map.rank == 0 ? "this rank, 0, hosts it" : "rank 0 hosts it";
}

using TcpStorePtr = c10::intrusive_ptr<c10d::TCPStore>;

// c10d waits without a limit for the greeting of whatever listens at the address. The
// thread is left behind when that never comes: the program is about to end.
TcpStorePtr make_tcp_store(const std::string& address, const c10d::TCPStoreOptions& options) {
  std::packaged_task<TcpStorePtr()> task(
      [address, options] { return c10::make_intrusive<c10d::TCPStore>(address, options); });
  std::future<TcpStorePtr> store = task.get_future();
  std::thread(std::move(task)).detach();
  // Time for c10d to notice its own timeout, about which it can say more.
  constexpr std::chrono::seconds kGrace{2};
  if (store.wait_for(options.timeout + kGrace) != std::future_status::ready) {
    throw std::runtime_error("something listens there, but does not answer as a store does");
  }
  return store.get();
}

std::string first_line_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
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
  comm::check_store_host(map, timeout);
  const comm::QuietC10d quiet;
  try {
    return make_tcp_store(meeting.address, options);
  } catch (const std::exception& error) {
    throw CommError(
        "store",
        fmt::format("rank {} of {} could not meet the others at address '{}' port {} within {} ms ({}; is it "
                    "started, and is the port reachable from here?): {}",
                    map.rank, map.world_size, meeting.address, meeting.port, timeout.count(),
                    expected_host(map), first_line_of(error)),
        CommError::Recovery::kFatal);
  }
}

c10::intrusive_ptr<c10d::Store> open_file_store(const RankMap& map, std::chrono::milliseconds timeout) {
  const std::string& path = map.rendezvous.path;
  c10::intrusive_ptr<c10d::Store> store;
  // c10d would make a file that everybody can read, and with it the addresses and the secret
  // of the ranks.
  base::UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)).reset();
  try {
    store = c10::make_intrusive<c10d::FileStore>(path, map.world_size);
    store->setTimeout(timeout);
    // A file that an earlier job left behind would hand out that job's addresses.
    if (const int64_t joined = store->add(fmt::format("lockstep/joined/{}", map.generation), 1);
        joined > map.world_size) {
      throw ConfigError("store",
                        fmt::format("rendezvous file was used by another job, remove it: {} ranks joined "
                                    "a job of {} at {}",
                                    joined, map.world_size, path));
    }
  } catch (const c10::Error& error) {
    throw ConfigError("store", fmt::format("rendezvous file cannot be used by rank {}: {}: {}", map.rank,
                                           path, first_line_of(error)));
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
