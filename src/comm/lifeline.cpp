#include "comm/lifeline.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/network.h"
#include "base/number.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kStoreKey[] = "lifeline";
// Connections that have not authenticated; beyond this number the oldest is closed.
constexpr size_t kMaxUnauthenticatedLifelines = 64;

// --- what is sent on a lifeline ---

// Reports of rank 0, and the goodbye of a rank. Each is one message on an authenticated connection.
enum class NoticeKind : uint8_t { kDied = 1, kLeft = 2 };

struct Notice {
  NoticeKind kind = NoticeKind::kDied;
  int rank = 0;
};

std::string encode_notice(Notice notice) {
  return MessageWriter(static_cast<uint8_t>(notice.kind)).number(notice.rank).bytes();
}

// nullopt: the message is no notice.
std::optional<Notice> decode_notice(std::string_view message) {
  try {
    MessageReader reader(message);
    const auto kind = static_cast<NoticeKind>(reader.byte());
    if (kind != NoticeKind::kDied && kind != NoticeKind::kLeft) return std::nullopt;
    return Notice{kind, static_cast<int>(reader.number())};
  } catch (const MalformedMessage&) {
    return std::nullopt;
  }
}

// --- where rank 0 listens ---

struct Address {
  std::string host;
  uint16_t port = 0;
};

std::string encode_address(const Address& address) {
  return fmt::format("{} {}", address.port, address.host);
}

Address decode_address(const std::string& text) {
  const size_t space = text.find(' ');
  const std::optional<int64_t> port = base::parse_integer(text.substr(0, space));
  if (space == text.npos || !port || *port < 1 || *port > 65535) {
    throw CommError("lifeline", fmt::format("rank 0 published no address of its lifeline: '{}'", text),
                    CommError::Recovery::kFatal, 0);
  }
  return {text.substr(space + 1), static_cast<uint16_t>(*port)};
}

}  // namespace

// --- rank 0's server ---

// Rank 0's end of all lifelines. Used by the lifeline's thread alone.
class Lifeline::Server {
 public:
  using Report = std::function<void(Departure)>;

  // `report` is called for every departure, after the other ranks were informed.
  Server(base::UniqueFd listener, int size, const base::JobToken& token, Report report);

  // Serves until `wake_fd` becomes readable, then sends rank 0's goodbye.
  void serve(int wake_fd);

 private:
  using Connection = std::unique_ptr<SecurePeer>;

  void accept_one();
  // False: the connection is over, or has to be closed.
  bool read_from(SecurePeer& connection);
  void welcome(SecurePeer& connection);
  int num_connections(int rank) const;
  void send_to_all(Notice notice);
  void drop(size_t index);

  const base::JobToken token_;
  base::UniqueFd listener_;  // closed once all ranks have come
  const int size_;
  const Report report_;
  std::vector<Connection> connections_;
  std::vector<Notice> departures_;  // for ranks that come later
  std::vector<bool> came_;
  std::vector<bool> said_goodbye_;
};

Lifeline::Server::Server(base::UniqueFd listener, int size, const base::JobToken& token, Report report)
    : token_(token),
      listener_(std::move(listener)),
      size_(size),
      report_(std::move(report)),
      came_(static_cast<size_t>(size)),
      said_goodbye_(static_cast<size_t>(size)) {
  came_[0] = true;
}

void Lifeline::Server::serve(int wake_fd) {
  for (;;) {
    std::vector<pollfd> events{{wake_fd, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) {
      events.push_back(
          {connection->fd(), static_cast<short>(connection->has_unsent() ? POLLIN | POLLOUT : POLLIN), 0});
    }
    if (poll(events.data(), events.size(), -1) < 0) {
      continue;  // a signal
    }
    // From the last to the first: dropping one moves only those that were already served.
    for (size_t i = connections_.size(); i-- > 0;) {
      const short happened = events[i + 2].revents;
      if ((happened & POLLOUT) != 0) {
        connections_[i]->flush();
      }
      if ((happened & ~POLLOUT) != 0 && !read_from(*connections_[i])) {
        drop(i);
      }
    }
    if (events[1].revents != 0) {
      accept_one();
    }
    if (listener_ && std::all_of(came_.begin(), came_.end(), [](bool came) { return came; })) {
      listener_.reset();
    }
    if (events[0].revents != 0) {
      send_to_all({NoticeKind::kLeft, 0});
      return;
    }
  }
}

void Lifeline::Server::accept_one() {
  base::UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) return;
  const auto is_unauthenticated = [](const Connection& connection) { return connection->rank() < 0; };
  if (static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(), is_unauthenticated)) >=
      kMaxUnauthenticatedLifelines) {
    connections_.erase(std::find_if(connections_.begin(), connections_.end(), is_unauthenticated));
  }
  connections_.push_back(std::make_unique<SecurePeer>(std::move(fd), token_, Purpose::kLifeline, size_));
}

bool Lifeline::Server::read_from(SecurePeer& connection) {
  const bool was_unauthenticated = connection.rank() < 0;
  const bool stays = connection.read();
  if (was_unauthenticated && connection.rank() >= 0) {
    // A rank has one lifeline, and rank 0 needs none.
    if (connection.rank() == 0 || num_connections(connection.rank()) > 1) {
      return false;
    }
    welcome(connection);
  }
  // A rank sends nothing but its goodbye.
  while (const std::optional<std::string> message = connection.next()) {
    const auto notice = decode_notice(*message);
    if (notice && notice->kind == NoticeKind::kLeft) {
      said_goodbye_[static_cast<size_t>(connection.rank())] = true;
      return false;
    }
  }
  return stays;
}

void Lifeline::Server::welcome(SecurePeer& connection) {
  came_[static_cast<size_t>(connection.rank())] = true;
  for (const Notice& departure : departures_) {
    connection.send(encode_notice(departure));
  }
}

int Lifeline::Server::num_connections(int rank) const {
  return static_cast<int>(
      std::count_if(connections_.begin(), connections_.end(),
                    [rank](const Connection& connection) { return connection->rank() == rank; }));
}

void Lifeline::Server::drop(size_t index) {
  const Connection gone = std::move(connections_[index]);
  connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(index));
  const int rank = gone->rank();
  if (rank <= 0 || num_connections(rank) > 0) {
    return;  // not a rank, or the second connection of one
  }
  const bool died = !said_goodbye_[static_cast<size_t>(rank)];
  const Notice departure{died ? NoticeKind::kDied : NoticeKind::kLeft, rank};
  departures_.push_back(departure);
  send_to_all(departure);
  report_({rank, died});
}

void Lifeline::Server::send_to_all(Notice notice) {
  const std::string message = encode_notice(notice);
  for (const Connection& connection : connections_) {
    // If it fails, read() reports the end of that connection.
    connection->send(message);
  }
}

// --- a rank ---

Lifeline::Lifeline(int rank, int size) : rank_(rank), size_(size) {}

std::shared_ptr<Lifeline> Lifeline::join(c10d::Store& store, const base::JobToken& token, int rank, int size,
                                         const std::string& address, Milliseconds timeout) {
  std::shared_ptr<Lifeline> lifeline(new Lifeline(rank, size));
  lifeline->wake_.reset(eventfd(0, EFD_CLOEXEC));
  base::check(static_cast<bool>(lifeline->wake_), "eventfd");
  if (rank == 0) {
    lifeline->start_server(store, token, address);
  } else {
    lifeline->connect_to_server(store, token, timeout);
  }
  return lifeline;
}

void Lifeline::start_server(c10d::Store& store, const base::JobToken& token, const std::string& address) {
  base::ListenSocket listener = base::listen_on_free_port(address);
  const Address published{address, listener.port};
  server_ = std::make_unique<Server>(std::move(listener.fd), size_, token,
                                     [this](Departure departure) { record(departure); });
  thread_ = std::thread([this] { server_->serve(wake_.get()); });
  store.set(kStoreKey, encode_address(published));
}

void Lifeline::connect_to_server(c10d::Store& store, const base::JobToken& token, Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  store.wait({kStoreKey}, timeout);
  const Address address = decode_address(store.get_to_str(kStoreKey));
  try {
    connection_.emplace(connect_to(address.host, address.port, deadline), token, Purpose::kLifeline, rank_,
                        deadline);
  } catch (const ConnectionError& error) {
    throw CommError(
        "lifeline",
        fmt::format("rank {} of {} cannot reach rank 0 at {} port {}, which rank 0 chose ({}): is that "
                    "address reachable from here? The option interface chooses another",
                    rank_, size_, address.host, address.port, error.what()),
        CommError::Recovery::kFatal, 0);
  }
  thread_ = std::thread([this] { listen_to_server(); });
}

Lifeline::~Lifeline() {
  if (thread_.joinable()) {
    eventfd_write(wake_.get(), 1);
    thread_.join();
  }
  if (connection_) {
    try {
      connection_->send(encode_notice({NoticeKind::kLeft, rank_}), Clock::now());
    } catch (const ConnectionError&) {
      // Rank 0 is gone.
    }
  }
}

void Lifeline::listen_to_server() {
  try {
    for (;;) {
      // Before poll(): a notice may have arrived together with rank 0's proof.
      while (const std::optional<std::string> message = connection_->receive(Clock::now())) {
        const auto notice = decode_notice(*message);
        if (!notice) {
          continue;
        }
        record({notice->rank, notice->kind == NoticeKind::kDied});
        if (notice->rank == 0) {
          return;  // the end of the connection that follows is no death
        }
      }
      pollfd events[] = {{wake_.get(), POLLIN, 0}, {connection_->fd(), POLLIN, 0}};
      if (poll(events, 2, -1) > 0 && events[0].revents != 0) {
        return;
      }
    }
  } catch (const ConnectionError&) {
    record({0, true});
  }
}

void Lifeline::record(Departure departure) {
  const base::MutexLock lock(mutex_);
  if (!departure.died) {
    left_ = left_.value_or(departure.rank);
    changed_.notify_all();
    return;
  }
  if (dead_) return;
  dead_ = departure.rank;
  changed_.notify_all();
  // Under the lock, so that forget() waits for a running callback.
  for (const auto& [subscription, callback] : callbacks_) {
    callback(departure.rank);
  }
}

std::optional<Lifeline::Departure> Lifeline::first_departure(Milliseconds patience) {
  const Clock::time_point deadline = Clock::now() + patience;
  base::MutexLock lock(mutex_);
  while (!dead_ && !left_) {
    if (!changed_.wait_until(lock, deadline)) break;
  }
  if (dead_) return Departure{*dead_, true};
  if (left_) return Departure{*left_, false};
  return std::nullopt;
}

Lifeline::Subscription Lifeline::on_death(std::function<void(int)> callback) {
  const base::MutexLock lock(mutex_);
  if (dead_) {
    callback(*dead_);
  }
  const Subscription subscription = next_subscription_++;
  callbacks_.emplace(subscription, std::move(callback));
  return subscription;
}

void Lifeline::forget(Subscription subscription) {
  const base::MutexLock lock(mutex_);
  callbacks_.erase(subscription);
}

}  // namespace lockstep::comm
