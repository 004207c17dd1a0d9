#include "comm/lifeline.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/check.h"
#include "base/listen_socket.h"
#include "base/log.h"
#include "comm/lifeline_server.h"
#include "comm/lifeline_wire.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kStoreKey[] = "lifeline";

struct Address {
  std::string host;
  std::string port;
  Nonce nonce{};
};

std::vector<uint8_t> encode(const Address& address) {
  std::vector<uint8_t> bytes(address.nonce.begin(), address.nonce.end());
  const std::string text = address.port + " " + address.host;
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

Address decode(const std::vector<uint8_t>& bytes) {
  base::check_lt(kNonceBytes, bytes.size(), "size of the lifeline's address in the store");
  Address address;
  std::copy_n(bytes.begin(), kNonceBytes, address.nonce.begin());
  const std::string text(bytes.begin() + kNonceBytes, bytes.end());
  const size_t space = text.find(' ');
  address.port = text.substr(0, space);
  address.host = text.substr(space + 1);
  return address;
}

bool wait_for(int fd, short events, Clock::time_point deadline) {
  pollfd entry{fd, events, 0};
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() < 0) {
      return false;
    }
    if (poll(&entry, 1, static_cast<int>(left.count())) > 0) {
      return true;
    }
  }
}

// Null where it cannot be connected before the deadline.
base::UniqueFd connect_once(const Address& address, Clock::time_point deadline) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &list) != 0) {
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(list, freeaddrinfo);
  base::UniqueFd fd(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    return {};
  }
  if (connect(fd.get(), list->ai_addr, list->ai_addrlen) != 0) {
    int error = errno;
    socklen_t length = sizeof(error);
    if (error != EINPROGRESS || !wait_for(fd.get(), POLLOUT, deadline) ||
        getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
      return {};
    }
  }
  return fd;
}

// Reads one notice that must come before the deadline.
std::optional<Notice> read_notice(int fd, Clock::time_point deadline) {
  NoticeBytes bytes;
  for (size_t have = 0; have < bytes.size();) {
    if (!wait_for(fd, POLLIN, deadline)) {
      return std::nullopt;
    }
    const ssize_t count = recv(fd, bytes.data() + have, bytes.size() - have, 0);
    if (count > 0) {
      have += static_cast<size_t>(count);
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      return std::nullopt;
    }
  }
  return decode_notice(bytes);
}

}  // namespace

Lifeline::Lifeline(int rank, int size) : rank_(rank), size_(size) {}

std::shared_ptr<Lifeline> Lifeline::join(c10d::Store& store, int rank, int size, const std::string& address,
                                         Milliseconds timeout) {
  std::shared_ptr<Lifeline> lifeline(new Lifeline(rank, size));
  lifeline->wake_.reset(eventfd(0, EFD_CLOEXEC));
  base::check(static_cast<bool>(lifeline->wake_), "eventfd");
  if (rank == 0) {
    lifeline->start_server(store, address);
  } else {
    lifeline->connect_to_server(store, timeout);
  }
  return lifeline;
}

void Lifeline::start_server(c10d::Store& store, const std::string& address) {
  base::ListenSocket listener = base::listen_on_free_port(address);
  const Address published{address, std::to_string(listener.port), make_nonce()};
  server_ = std::make_unique<Server>(std::move(listener.fd), size_, published.nonce,
                                     [this](Departure departure) { record(departure); });
  thread_ = std::thread([this] { server_->serve(wake_.get()); });
  store.set(kStoreKey, encode(published));
}

void Lifeline::connect_to_server(c10d::Store& store, Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  store.wait({kStoreKey}, timeout);
  const Address address = decode(store.get(kStoreKey));
  const Hello hello = encode_hello(address.nonce, rank_);
  connection_ = connect_once(address, deadline);
  if (connection_) {
    keep_alive(connection_.get());
    send_whole(connection_.get(), hello.data(), hello.size());
  }
  if (!connection_ || !read_notice(connection_.get(), deadline)) {
    throw CommError(
        "lifeline",
        fmt::format("rank {} of {} cannot reach rank 0 at {} port {}, which rank 0 chose: is that "
                    "address reachable from here? The option interface chooses another",
                    rank_, size_, address.host, address.port),
        CommError::Recovery::kFatal, 0);
  }
  thread_ = std::thread([this] { listen_to_server(); });
}

Lifeline::~Lifeline() {
  if (connection_) {
    const NoticeBytes goodbye = encode_notice({NoticeKind::kLeft, rank_});
    send_whole(connection_.get(), goodbye.data(), goodbye.size());
  }
  if (thread_.joinable()) {
    eventfd_write(wake_.get(), 1);
    thread_.join();
  }
}

void Lifeline::listen_to_server() {
  std::vector<uint8_t> received;
  for (;;) {
    pollfd events[] = {{wake_.get(), POLLIN, 0}, {connection_.get(), POLLIN, 0}};
    if (poll(events, 2, -1) < 0) {
      continue;  // a signal
    }
    if (events[1].revents != 0) {
      uint8_t bytes[64];
      const ssize_t count = recv(connection_.get(), bytes, sizeof(bytes), 0);
      if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) {
        record({0, true});
        return;
      }
      received.insert(received.end(), bytes, bytes + std::max<ssize_t>(count, 0));
      for (; received.size() >= kNoticeBytes;
           received.erase(received.begin(), received.begin() + kNoticeBytes)) {
        NoticeBytes notice_bytes;
        std::copy_n(received.begin(), kNoticeBytes, notice_bytes.begin());
        const auto notice = decode_notice(notice_bytes);
        if (!notice || notice->kind == NoticeKind::kWelcome) {
          continue;
        }
        record({notice->rank, notice->kind == NoticeKind::kDied});
        if (notice->rank == 0) {
          return;  // the connection's end that follows is no death
        }
      }
    }
    if (events[0].revents != 0) {
      return;
    }
  }
}

void Lifeline::record(Departure departure) {
  const std::lock_guard lock(mutex_);
  if (!departure.died) {
    left_ = left_.value_or(departure.rank);
    changed_.notify_all();
    return;
  }
  if (dead_) {
    return;
  }
  dead_ = departure.rank;
  changed_.notify_all();
  // Under the lock: forget() thereby waits for a callback that runs.
  for (const auto& [subscription, callback] : callbacks_) {
    callback(departure.rank);
  }
}

std::optional<Lifeline::Departure> Lifeline::first_departure(Milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return dead_ || left_; });
  if (dead_) {
    return Departure{*dead_, true};
  }
  if (left_) {
    return Departure{*left_, false};
  }
  return std::nullopt;
}

Lifeline::Subscription Lifeline::on_death(std::function<void(int)> callback) {
  const std::lock_guard lock(mutex_);
  if (dead_) {
    callback(*dead_);
  }
  const Subscription subscription = next_subscription_++;
  callbacks_.emplace(subscription, std::move(callback));
  return subscription;
}

void Lifeline::forget(Subscription subscription) {
  const std::lock_guard lock(mutex_);
  callbacks_.erase(subscription);
}

}  // namespace lockstep::comm
