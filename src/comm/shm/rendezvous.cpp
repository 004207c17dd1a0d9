#include "comm/shm/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <unistd.h>

#include <lockstep/json.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <system_error>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep::comm::shm {
namespace {

// What a rank tells the others of itself.
Json hello(const std::shared_ptr<Mapping>& memory, uint64_t magic) {
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  std::error_code ignored;
  return {{"version", kLayoutVersion},
          {"bytes", memory->bytes()},
          {"host", boot_id},
          {"pid_namespace", std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string()},
          {"pid", getpid()},
          {"start_time", process_start_time(getpid())},
          {"fd", memory->fd()},
          {"magic", magic}};
}

// The homes of ranks that are threads of this process, while they meet.
class HomesHere {
 public:
  // Entered until the end of the object's life.
  class Entry {
   public:
    Entry(uint64_t magic, const std::shared_ptr<Mapping>& memory) : magic_(magic) {
      HomesHere& homes = of_process();
      const std::lock_guard lock(homes.mutex_);
      homes.memory_[magic] = memory;
    }
    ~Entry() {
      HomesHere& homes = of_process();
      const std::lock_guard lock(homes.mutex_);
      homes.memory_.erase(magic_);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    const uint64_t magic_;
  };

  // Null where no rank of this process has said this number.
  static std::shared_ptr<Mapping> find(uint64_t magic) {
    HomesHere& homes = of_process();
    const std::lock_guard lock(homes.mutex_);
    const auto found = homes.memory_.find(magic);
    return found == homes.memory_.end() ? nullptr : found->second;
  }

 private:
  static HomesHere& of_process() {
    static HomesHere homes;
    return homes;
  }

  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Mapping>> memory_;  // protected by mutex_
};

std::vector<std::string> keys_of(const char* what, int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) {
    keys.push_back(fmt::format("shm/{}/{}", what, rank));
  }
  return keys;
}

// Publishes this rank's text under the name and returns everybody's, in rank order.
std::vector<std::string> exchange(c10d::Store& store, const char* what, int rank, int size,
                                  const std::string& text, std::chrono::milliseconds timeout) {
  const auto keys = keys_of(what, size);
  store.set(keys[rank], text);
  try {
    store.wait(keys, timeout);
  } catch (const std::exception& error) {
    std::vector<int> missing;
    for (int peer = 0; peer < size; ++peer) {
      if (!store.check({keys[peer]})) {
        missing.push_back(peer);
      }
    }
    throw CommError("shm",
                    fmt::format("not all ranks joined the group within {} ms: missing ranks {} of {}",
                                timeout.count(), fmt::join(missing, ","), size),
                    CommError::Recovery::kRebuild,
                    missing.empty() ? std::nullopt : std::optional<int>(missing.front()));
  }
  std::vector<std::string> texts;
  for (const auto& key : keys) {
    texts.push_back(store.get_to_str(key));
  }
  return texts;
}

[[noreturn]] void refuse(int rank, int peer, const std::string& why) {
  throw ConfigError("shm",
                    fmt::format("rank {} cannot reach the memory of rank {}: {}; the shm backend needs all "
                                "ranks on one host, in one PID namespace and of one user: use gloo",
                                rank, peer, why));
}

std::shared_ptr<Mapping> map_home(const Json& own, const Json& peer, int own_rank, int peer_rank) {
  for (const char* field : {"host", "pid_namespace"}) {
    if (own.at(field) != peer.at(field)) {
      refuse(own_rank, peer_rank,
             fmt::format("{} {} against {}", field, own.at(field).get<std::string>(),
                         peer.at(field).get<std::string>()));
    }
  }
  if (own.at("version") != peer.at("version") || own.at("bytes") != peer.at("bytes")) {
    refuse(own_rank, peer_rank, "it runs another version of Lockstep");
  }
  if (own.at("pid") == peer.at("pid")) {
    std::shared_ptr<Mapping> memory = HomesHere::find(peer.at("magic").get<uint64_t>());
    if (!memory) refuse(own_rank, peer_rank, "it says that it is of this process, and is not");
    return memory;
  }
  try {
    return std::make_shared<Mapping>(
        Mapping::open(peer.at("pid").get<pid_t>(), peer.at("fd").get<int>(), peer.at("bytes").get<size_t>()));
  } catch (const std::system_error& error) {
    refuse(own_rank, peer_rank, error.what());
  }
}

std::vector<Peer> map_peers(const std::vector<std::string>& hellos, int rank,
                            const std::shared_ptr<Mapping>& own_memory) {
  const Json own = Json::parse(hellos[rank]);
  std::vector<Peer> peers;
  for (int i = 0; i < static_cast<int>(hellos.size()); ++i) {
    const Json peer = Json::parse(hellos[i]);
    auto memory = i == rank ? own_memory : map_home(own, peer, rank, i);
    peers.push_back(
        {std::move(memory), PeerProcess(peer.at("pid").get<pid_t>(), peer.at("start_time").get<uint64_t>())});
    if (peers.back().home().magic.load(std::memory_order_acquire) != peer.at("magic").get<uint64_t>()) {
      refuse(rank, i, "its process is not the one that joined");
    }
  }
  return peers;
}

}  // namespace

bool Peer::same_process() const { return process.pid() == getpid(); }

std::vector<Peer> meet(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  auto memory = std::make_shared<Mapping>(Mapping::create(sizeof(Home)));
  // Zero bytes are a valid Home: default initialisation leaves them alone.
  auto* home = new (memory->data()) Home;
  std::random_device random;
  const uint64_t magic = uint64_t{random()} << 32 | random();
  home->magic.store(magic, std::memory_order_release);
  const HomesHere::Entry entry(magic, memory);

  const auto hellos = exchange(store, "hello", rank, size, hello(memory, magic).dump(), timeout);
  std::vector<Peer> peers;
  std::string problem;
  try {
    peers = map_peers(hellos, rank, memory);
  } catch (const ConfigError& error) {
    problem = error.what();
  }
  for (const auto& reported : exchange(store, "mapped", rank, size, problem, timeout)) {
    if (!reported.empty()) {
      // The text already names the component.
      throw ConfigError("shm", reported.substr(std::string("[shm] ").size()));
    }
  }
  // Everyone has it: nobody needs the descriptor any more.
  memory->close_fd();
  return peers;
}

}  // namespace lockstep::comm::shm
