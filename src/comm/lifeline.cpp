#include "comm/lifeline.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/check.h"
#include "base/listen_socket.h"
#include "base/number.h"
#include "comm/lifeline_server.h"
#include "comm/lifeline_wire.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kStoreKey[] = "lifeline";

struct Address {
  std::string host;
  uint16_t port = 0;
};

std::string encode(const Address& address) { return fmt::format("{} {}", address.port, address.host); }

Address decode(const std::string& text) {
  const size_t space = text.find(' ');
  const std::optional<int64_t> port = base::parse_integer(text.substr(0, space));
  if (space == text.npos || !port || *port < 1 || *port > 65535) {
    throw CommError("lifeline", fmt::format("rank 0 published no address of its lifeline: '{}'", text),
                    CommError::Recovery::kFatal, 0);
  }
  return {text.substr(space + 1), static_cast<uint16_t>(*port)};
}

}  // namespace

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
  store.set(kStoreKey, encode(published));
}

void Lifeline::connect_to_server(c10d::Store& store, const base::JobToken& token, Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  store.wait({kStoreKey}, timeout);
  const Address address = decode(store.get_to_str(kStoreKey));
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
      // Rank 0 is gone already.
    }
  }
}

void Lifeline::listen_to_server() {
  try {
    for (;;) {
      // Before poll(): a notice may have come with rank 0's proof.
      while (const std::optional<std::string> message = connection_->receive(Clock::now())) {
        const auto notice = decode_notice(*message);
        if (!notice) {
          continue;
        }
        record({notice->rank, notice->kind == NoticeKind::kDied});
        if (notice->rank == 0) {
          return;  // the connection's end that follows is no death
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
