#include "comm/shm/peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/json.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <random>
#include <string>
#include <system_error>

#include "base/file.h"
#include "base/mutex.h"
#include "base/process.h"

namespace lockstep::comm::shm {
namespace {

[[noreturn]] void throw_no_memory(size_t bytes, int error) {
  throw CommError(
      "shm",
      fmt::format("cannot allocate {} bytes of shared memory: {}; free memory, or raise the limit of "
                  "the container or job",
                  bytes, std::strerror(error)),
      CommError::Recovery::kFatal);
}

std::byte* map_shared(int fd, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

// The identity of the running kernel; "" if /proc does not show it.
std::string boot_id() { return base::read_first_line("/proc/sys/kernel/random/boot_id").value_or(""); }

std::string own_namespace(std::string_view kind) {
  std::error_code ignored;
  return std::filesystem::read_symlink(fmt::format("/proc/self/ns/{}", kind), ignored).string();
}

// 0: no such process runs (a zombie does not run).
uint64_t process_start_time(pid_t pid) {
  const auto process = base::process_state(fmt::format("/proc/{}", pid));
  return !process || process->state == 'Z' || process->state == 'X' ? 0 : process->start_time;
}

// What a rank announces to the others.
Json announcement(const std::shared_ptr<Mapping>& memory, uint64_t magic) {
  return {{"version", kLayoutVersion}, {"bytes", memory->bytes()},
          {"host", boot_id()},         {"pid_namespace", own_namespace("pid")},
          {"pid", getpid()},           {"start_time", process_start_time(getpid())},
          {"fd", memory->fd()},        {"magic", magic}};
}

// The homes of ranks that are threads of this process, while they connect.
class HomesOfProcess {
 public:
  // Listed while the object exists.
  class Entry {
   public:
    Entry(uint64_t magic, const std::shared_ptr<Mapping>& memory) : magic_(magic) {
      HomesOfProcess& homes = of_process();
      const base::MutexLock lock(homes.mutex_);
      homes.memory_[magic] = memory;
    }
    ~Entry() {
      HomesOfProcess& homes = of_process();
      const base::MutexLock lock(homes.mutex_);
      homes.memory_.erase(magic_);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    const uint64_t magic_;
  };

  // Null: no rank of this process has this number.
  static std::shared_ptr<Mapping> find(uint64_t magic) {
    HomesOfProcess& homes = of_process();
    const base::MutexLock lock(homes.mutex_);
    const auto found = homes.memory_.find(magic);
    return found == homes.memory_.end() ? nullptr : found->second;
  }

 private:
  static HomesOfProcess& of_process() {
    static HomesOfProcess homes;
    return homes;
  }

  base::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Mapping>> memory_ LOCKSTEP_GUARDED_BY(mutex_);
};

std::vector<std::string> keys_of(const char* what, int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) {
    keys.push_back(fmt::format("shm/{}/{}", what, rank));
  }
  return keys;
}

// Publishes this rank's text under the name and returns those of all ranks, in rank order.
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
    std::shared_ptr<Mapping> memory = HomesOfProcess::find(peer.at("magic").get<uint64_t>());
    if (!memory) refuse(own_rank, peer_rank, "it claims to be of this process and is not");
    return memory;
  }
  try {
    return std::make_shared<Mapping>(
        Mapping::open(peer.at("pid").get<pid_t>(), peer.at("fd").get<int>(), peer.at("bytes").get<size_t>()));
  } catch (const std::system_error& error) {
    refuse(own_rank, peer_rank, error.what());
  }
}

std::vector<Peer> map_peers(const std::vector<std::string>& announcements, int rank,
                            const std::shared_ptr<Mapping>& own_memory) {
  const Json own = Json::parse(announcements[rank]);
  std::vector<Peer> peers;
  for (int i = 0; i < static_cast<int>(announcements.size()); ++i) {
    const Json peer = Json::parse(announcements[i]);
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

std::string host_identity() {
  return fmt::format("{} {} {} {}", boot_id(), own_namespace("pid"), own_namespace("user"), geteuid());
}

Mapping Mapping::create(size_t bytes) {
  base::UniqueFd fd(memfd_create("lockstep", MFD_CLOEXEC));
  if (!fd) throw_no_memory(bytes, errno);
  Mapping mapping(std::move(fd), bytes);
  if (const int error = posix_fallocate(mapping.fd(), 0, static_cast<off_t>(bytes)); error != 0) {
    throw_no_memory(bytes, error);
  }
  mapping.data_ = map_shared(mapping.fd(), bytes);
  if (mapping.data_ == nullptr) throw_no_memory(bytes, errno);
  return mapping;
}

Mapping Mapping::open(pid_t pid, int fd, size_t bytes) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  base::UniqueFd own_fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!own_fd) throw std::system_error(errno, std::generic_category(), path);
  Mapping mapping(std::move(own_fd), bytes);
  // Another, shorter file under that number would cause a SIGBUS on first access.
  struct stat status {};
  if (fstat(mapping.fd(), &status) != 0 || static_cast<size_t>(status.st_size) != bytes) {
    throw std::system_error(ESTALE, std::generic_category(), path);
  }
  mapping.data_ = map_shared(mapping.fd(), bytes);
  if (mapping.data_ == nullptr) throw std::system_error(errno, std::generic_category(), path);
  mapping.close_fd();
  return mapping;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

void Mapping::release_pages() const {
  if (fd_) fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes_));
}

PeerProcess::PeerProcess(pid_t pid, uint64_t start_time) : pid_(pid), start_time_(start_time) {
  if (pid == getpid()) return;
  pid_fd_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  // The peer's pid may have gone to another process since the peer announced it.
  if (pid_fd_ && process_start_time(pid) != start_time) pid_fd_.reset();
}

bool PeerProcess::alive() const {
  if (pid_ == getpid()) return true;
  if (!pid_fd_) return process_start_time(pid_) == start_time_;
  pollfd polled{pid_fd_.get(), POLLIN, 0};
  return poll(&polled, 1, 0) == 0 || (polled.revents & (POLLIN | POLLHUP)) == 0;
}

bool Peer::same_process() const { return process.pid() == getpid(); }

std::vector<Peer> connect_peers(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  auto memory = std::make_shared<Mapping>(Mapping::create(sizeof(Home)));
  // Zero bytes are a valid Home, which default initialisation does not change.
  auto* home = new (memory->data()) Home;
  std::random_device random;
  const uint64_t magic = uint64_t{random()} << 32 | random();
  home->magic.store(magic, std::memory_order_release);
  const HomesOfProcess::Entry entry(magic, memory);

  const auto announcements =
      exchange(store, "hello", rank, size, announcement(memory, magic).dump(), timeout);
  std::vector<Peer> peers;
  std::string problem;
  try {
    peers = map_peers(announcements, rank, memory);
  } catch (const ConfigError& error) {
    problem = error.what();
  }
  for (const auto& reported : exchange(store, "mapped", rank, size, problem, timeout)) {
    if (!reported.empty()) {
      // The text already names the component.
      throw ConfigError("shm", reported.substr(std::string("[shm] ").size()));
    }
  }
  // All ranks have mapped it.
  memory->close_fd();
  return peers;
}

}  // namespace lockstep::comm::shm
