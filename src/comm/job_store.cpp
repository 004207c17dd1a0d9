#include "comm/job_store.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/environment.h"
#include "base/job_token.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/network.h"
#include "comm/job_store_server.h"
#include "comm/secure_connection.h"
#include "comm/transport.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// --- the job's secret ---

// nullopt: the descriptor is closed, or is another file's by now.
std::optional<std::string> read_key(int fd) {
  std::error_code ignored;
  const auto name = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), ignored).string();
  std::array<char, 64> text;
  if (!name.starts_with("/memfd:lockstep-key")) return std::nullopt;
  if (::pread(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) return std::nullopt;
  return std::string(text.data(), text.size());
}

std::string read_inherited_key(const Rendezvous& rendezvous) {
  if (const std::optional<std::string> key = read_key(rendezvous.key_fd)) {
    // Processes that this rank starts are not ranks of the job.
    ::fcntl(rendezvous.key_fd, F_SETFD, FD_CLOEXEC);
    return *key;
  }
  // A program between the launcher and this one has closed the descriptors that it inherited, as
  // Python's subprocess does. The launcher still has this one open.
  const std::string path = fmt::format("/proc/{}/fd/{}", rendezvous.key_pid, rendezvous.key_fd);
  const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (const std::optional<std::string> key = fd ? read_key(fd.get()) : std::nullopt) return *key;
  throw ConfigError(
      "store",
      fmt::format(
          "the ranks' secret cannot be read: descriptor {} (LOCKSTEP_KEY_FD) is not the launcher's, and "
          "'{}' cannot be read; the program that started this one must pass the descriptor on",
          rendezvous.key_fd, path));
}

// How this rank gets the secret. Rank 0 may have to create it.
class SecretSource {
 public:
  explicit SecretSource(const RankMap& map) : map_(map) {
    if (map.rendezvous.secret == Rendezvous::Secret::kKeyFile) {
      file_.emplace(map.rendezvous.key_name, base::Environment::of_process());
    }
  }

  // For rank 0, once.
  std::string make() const {
    if (!file_) return known();
    std::string secret = base::make_token();
    file_->publish(secret);
    return secret;
  }
  // nullopt: rank 0 has not created it yet.
  std::optional<std::string> read() const { return file_ ? file_->read() : known(); }
  // Call it when all ranks have read the secret.
  void clean_up() const {
    if (file_) file_->remove();
  }
  std::string where() const { return file_ ? file_->path().string() : ""; }

 private:
  std::string known() const {
    if (map_.rendezvous.secret == Rendezvous::Secret::kInherited) return read_inherited_key(map_.rendezvous);
    if (map_.rendezvous.secret == Rendezvous::Secret::kGiven) return map_.rendezvous.given_secret;
    const std::string token = base::Environment::of_process().get("LOCKSTEP_JOB_TOKEN").value_or("");
    // All attempts of a job have the same token, and their ranks must not mix.
    return base::JobToken(token).derive(fmt::format("ranks of {} {}", map_.job_id, map_.generation));
  }

  const RankMap& map_;
  std::optional<base::KeyFile> file_;
};

// --- a rank's connections ---

// The connections of a store and its clones. Thread-safe: each call uses a connection alone.
class StoreConnections {
 public:
  using Connect = std::function<SecureClient()>;

  StoreConnections(Connect connect, std::shared_ptr<JobStoreServer> server)
      : server_(std::move(server)), connect_(std::move(connect)) {
    idle_.push_back(connect_());
  }

  // Returns the answer without its first byte. Throws c10's DistStoreError if the store reports a
  // timeout, DistNetworkError if it is gone.
  std::string call(const MessageWriter& request, Milliseconds timeout, const std::string& what) {
    // The store measures the timeout itself and answers soon after it.
    constexpr std::chrono::seconds kGrace{20};
    try {
      const Clock::time_point deadline = Clock::now() + bounded(timeout) + kGrace;
      SecureClient connection = take();
      connection.send(request.bytes(), deadline);
      std::optional<std::string> answer = connection.receive(deadline);
      if (!answer) C10_THROW_ERROR(DistNetworkError, fmt::format("the job's store did not answer: {}", what));
      put_back(std::move(connection));
      MessageReader reader(*answer);
      switch (static_cast<StoreAnswer>(reader.byte())) {
        case StoreAnswer::kDone: return answer->substr(1);
        case StoreAnswer::kTimeout:
          C10_THROW_ERROR(DistStoreError, fmt::format("wait timeout after {} ms, {}", timeout.count(), what));
        case StoreAnswer::kRefused: break;
      }
      C10_THROW_ERROR(DistStoreError, fmt::format("the job's store refuses {}: {}", what, reader.text()));
    } catch (const ConnectionError& error) {
      C10_THROW_ERROR(DistNetworkError, fmt::format("the job's store on rank 0 is gone: {}", error.what()));
    } catch (const MalformedMessage& error) {
      C10_THROW_ERROR(DistNetworkError,
                      fmt::format("the job's store sent an invalid answer: {}", error.what()));
    }
  }

 private:
  SecureClient take() {
    {
      const base::MutexLock lock(mutex_);
      if (!idle_.empty()) {
        SecureClient connection = std::move(idle_.back());
        idle_.pop_back();
        return connection;
      }
    }
    return connect_();
  }

  void put_back(SecureClient connection) {
    const base::MutexLock lock(mutex_);
    idle_.push_back(std::move(connection));
  }

  // Destroyed last: connections end before the server that they lead to.
  const std::shared_ptr<JobStoreServer> server_;  // on rank 0
  const Connect connect_;
  base::Mutex mutex_;
  std::vector<SecureClient> idle_ LOCKSTEP_GUARDED_BY(mutex_);
};

MessageWriter request_of(StoreCall call) { return MessageWriter(static_cast<uint8_t>(call)); }

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

class JobStore final : public c10d::Store {
 public:
  JobStore(std::shared_ptr<StoreConnections> connections, Milliseconds timeout)
      : Store(timeout), connections_(std::move(connections)) {}

  c10::intrusive_ptr<Store> clone() override { return c10::make_intrusive<JobStore>(connections_, timeout_); }

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    call(request_of(StoreCall::kSet).text(key).text(text_of(value)), key);
  }

  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    const std::string answer = call(
        request_of(StoreCall::kCompareSet).text(key).text(text_of(expected)).text(text_of(desired)), key);
    return bytes_of(MessageReader(answer).text());
  }

  std::vector<uint8_t> get(const std::string& key) override { return multiGet({key}).front(); }

  int64_t add(const std::string& key, int64_t value) override {
    return number(request_of(StoreCall::kAdd).text(key).number(value), key);
  }

  bool deleteKey(const std::string& key) override {
    return number(request_of(StoreCall::kDelete).text(key), key) != 0;
  }

  bool check(const std::vector<std::string>& keys) override {
    return number(request_of(StoreCall::kCheck).texts(keys), "check") != 0;
  }

  int64_t getNumKeys() override { return number(request_of(StoreCall::kCount), "getNumKeys"); }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }

  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override {
    const Milliseconds limit = bounded(timeout);
    connections_->call(request_of(StoreCall::kWait).number(limit.count()).texts(keys), limit, named(keys));
  }

  void append(const std::string& key, const std::vector<uint8_t>& value) override {
    call(request_of(StoreCall::kAppend).text(key).text(text_of(value)), key);
  }

  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    const Milliseconds limit = bounded(timeout_);
    const std::string answer =
        connections_->call(request_of(StoreCall::kGet).number(limit.count()).texts(keys), limit, named(keys));
    std::vector<std::vector<uint8_t>> values;
    for (const std::string& value : MessageReader(answer).texts()) values.push_back(bytes_of(value));
    return values;
  }

  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override {
    MessageWriter request = request_of(StoreCall::kMultiSet);
    for (size_t i = 0; i < keys.size(); ++i) request.text(keys[i]).text(text_of(values[i]));
    call(request, named(keys));
  }

  bool hasExtendedApi() const override { return true; }

  std::vector<std::string> listKeys() override {
    return MessageReader(call(request_of(StoreCall::kList), "listKeys")).texts();
  }

 private:
  static std::string named(const std::vector<std::string>& keys) {
    constexpr size_t kShown = 4;
    const std::vector<std::string> first(
        keys.begin(), keys.begin() + static_cast<ptrdiff_t>(std::min(keys.size(), kShown)));
    return fmt::format("keys: {}{}", fmt::join(first, ", "), keys.size() > kShown ? ", ..." : "");
  }

  std::string call(const MessageWriter& request, const std::string& what) {
    return connections_->call(request, bounded(timeout_), what);
  }
  int64_t number(const MessageWriter& request, const std::string& what) {
    const std::string answer = call(request, what);
    return MessageReader(answer).number();
  }

  const std::shared_ptr<StoreConnections> connections_;
};

// --- opening the store ---

bool is_numeric(const std::string& address) {
  in6_addr ignored;
  return ::inet_pton(AF_INET, address.c_str(), &ignored) == 1 ||
         ::inet_pton(AF_INET6, address.c_str(), &ignored) == 1;
}

// A name may resolve to another address here than on other machines (Debian's 127.0.1.1), so the
// store listens on all addresses of this machine; a numeric address is used as it is.
base::UniqueFd listen_for_ranks(const Rendezvous& rendezvous) {
  if (rendezvous.listen_fd >= 0) {
    if (!base::is_listening(rendezvous.listen_fd)) {
      throw ConfigError("store",
                        fmt::format("LOCKSTEP_STORE_FD is not a socket that listens: {}; unset it where no "
                                    "launcher of Lockstep has started this process",
                                    rendezvous.listen_fd));
    }
    ::fcntl(rendezvous.listen_fd, F_SETFD, FD_CLOEXEC);
    return base::UniqueFd(rendezvous.listen_fd);
  }
  if (rendezvous.address == "localhost") return base::listen_on("127.0.0.1", rendezvous.port).fd;
  if (is_numeric(rendezvous.address)) {
    try {
      return base::listen_on(rendezvous.address, rendezvous.port).fd;
    } catch (const ConfigError& error) {
      // Behind NAT the address is not one of this machine's.
      base::log_debug("store", "listening on all addresses: {}", error.what());
    }
  }
  try {
    return base::listen_on("::", rendezvous.port).fd;
  } catch (const ConfigError&) {
    return base::listen_on("0.0.0.0", rendezvous.port).fd;  // a kernel without IPv6
  }
}

// What the user has to change, by what started the ranks.
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

[[noreturn]] void fail_to_meet(const RankMap& map, Milliseconds timeout, const std::string& why) {
  throw CommError(
      "store",
      fmt::format("rank {} of {} could not meet the others at address '{}' port {} within {} ms ({}): {}",
                  map.rank, map.world_size, map.rendezvous.address, map.rendezvous.port, timeout.count(),
                  map.rank == 0 ? "this rank, 0, hosts the store" : "rank 0 hosts the store", why),
      CommError::Recovery::kFatal);
}

// Connects as a rank other than 0 and retries until the deadline: the file may still have the
// secret of an earlier job with the same name, and another program may listen on the port before
// rank 0 does.
std::pair<SecureClient, base::JobToken> connect_first(const RankMap& map, const SecretSource& source,
                                                      Clock::time_point deadline) {
  constexpr std::chrono::seconds kAnswerTime{10};
  std::string why;
  Milliseconds pause{20};
  do {
    try {
      if (const std::optional<std::string> secret = source.read()) {
        const base::JobToken token(*secret);
        base::UniqueFd fd = connect_to(map.rendezvous.address, map.rendezvous.port, deadline);
        const Clock::time_point limit = std::min(deadline, Clock::now() + kAnswerTime);
        return {SecureClient(std::move(fd), token, Purpose::kStore, map.rank, limit), token};
      }
      why = fmt::format(
          "rank 0 has not written the ranks' secret to '{}', or this node does not see that folder: "
          "LOCKSTEP_KEY_DIR names one that all nodes share; LOCKSTEP_JOB_TOKEN, the same on all nodes, "
          "needs none",
          source.where());
    } catch (const NotOfThisJob& error) {
      why = error.what();
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<Milliseconds>(2 * pause, Milliseconds(500));
  } while (Clock::now() + pause < deadline);
  throw ConnectionError(why);
}

c10::intrusive_ptr<c10d::Store> host_store(const RankMap& map, const SecretSource& source,
                                           Milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  base::UniqueFd listener;
  try {
    listener = listen_for_ranks(map.rendezvous);
  } catch (const ConfigError& error) {
    fail_to_meet(map, timeout, error.what());
  }
  const base::JobToken token(source.make());
  const auto server = std::make_shared<JobStoreServer>(std::move(listener), token, map.world_size);
  auto connect = [server = std::weak_ptr(server), token, rank = map.rank, timeout] {
    const auto alive = server.lock();
    if (!alive) throw ConnectionError("it has ended");
    return SecureClient(alive->connect_here(), token, Purpose::kStore, rank, Clock::now() + timeout);
  };
  auto connections = std::make_shared<StoreConnections>(std::move(connect), server);
  const std::vector<int> missing = server->wait_for_ranks(deadline);
  source.clean_up();
  if (!missing.empty()) {
    fail_to_meet(
        map, timeout,
        fmt::format("rank{} {} did not come: is {} started, and can {} reach this machine?",
                    missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
                    missing.size() == 1 ? "it" : "each of them", missing.size() == 1 ? "it" : "they"));
  }
  return c10::make_intrusive<JobStore>(std::move(connections), timeout);
}

c10::intrusive_ptr<c10d::Store> join_store(const RankMap& map, const SecretSource& source,
                                           Milliseconds timeout) {
  check_store_host(map, timeout);
  std::optional<std::pair<SecureClient, base::JobToken>> first;
  try {
    first.emplace(connect_first(map, source, Clock::now() + timeout));
  } catch (const ConnectionError& error) {
    fail_to_meet(map, timeout,
                 fmt::format("{}; is rank 0 started, and is the port reachable from here?", error.what()));
  }
  auto held = std::make_shared<std::optional<SecureClient>>(std::move(first->first));
  auto connect = [held, token = first->second, host = map.rendezvous.address, port = map.rendezvous.port,
                  rank = map.rank, timeout] {
    if (*held) {
      SecureClient connection = *std::move(*held);
      held->reset();
      return connection;
    }
    const Clock::time_point deadline = Clock::now() + timeout;
    return SecureClient(connect_to(host, port, deadline), token, Purpose::kStore, rank, deadline);
  };
  return c10::make_intrusive<JobStore>(std::make_shared<StoreConnections>(std::move(connect), nullptr),
                                       timeout);
}

}  // namespace

void check_store_host(const RankMap& map, std::chrono::milliseconds timeout) {
  const Rendezvous& rendezvous = map.rendezvous;
  const std::optional<std::string> unknown =
      base::find_unknown_host(rendezvous.address, std::min(timeout, base::kHostPatience));
  if (!unknown) return;
  throw ConfigError(
      "store",
      fmt::format("rank {} of {} is to meet the others at host '{}' port {}, which {} does not "
                  "know ({}): {} to a name or an address of rank 0's node that every node knows",
                  map.rank, map.world_size, rendezvous.address, rendezvous.port,
                  map.host.empty() ? "this machine" : map.host, *unknown, host_remedy(map.launcher)));
}

c10::intrusive_ptr<c10d::Store> open_job_store(const RankMap& map, Milliseconds timeout) {
  const SecretSource source(map);
  return map.rank == 0 ? host_store(map, source, timeout) : join_store(map, source, timeout);
}

}  // namespace lockstep::comm
