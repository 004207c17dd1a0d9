#include "comm/job_store_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "base/check.h"

namespace lockstep::comm {
namespace {

// Limits for connections that have not authenticated: their number, beyond which the oldest are
// closed, and the time that each has.
constexpr size_t kMaxUnauthenticated = 256;
constexpr std::chrono::seconds kProofTime{10};
constexpr int kAcceptsAtOnce = 64;

int64_t number_of(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw MalformedMessage("add() to a key whose value is not a number");
  }
  return value;
}

MessageWriter done() { return MessageWriter(static_cast<uint8_t>(StoreAnswer::kDone)); }

}  // namespace

JobStoreServer::JobStoreServer(base::UniqueFd listener, const base::JobToken& token, int world_size)
    : token_(token),
      world_size_(world_size),
      listener_(std::move(listener)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  base::check(static_cast<bool>(wake_), "eventfd");
  ::fcntl(listener_.get(), F_SETFL, ::fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
  thread_ = std::thread([this] { serve(); });
}

JobStoreServer::~JobStoreServer() {
  {
    const base::MutexLock lock(mutex_);
    ending_ = true;
  }
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

base::UniqueFd JobStoreServer::connect_here() {
  int ends[2];
  base::check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  {
    const base::MutexLock lock(mutex_);
    own_connections_.emplace_back(ends[0]);
  }
  ::eventfd_write(wake_.get(), 1);
  return base::UniqueFd(ends[1]);
}

std::vector<int> JobStoreServer::wait_for_ranks(Clock::time_point deadline) {
  base::MutexLock lock(mutex_);
  while (ranks_.size() < static_cast<size_t>(world_size_)) {
    if (!rank_came_.wait_until(lock, deadline)) break;
  }
  std::vector<int> missing;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!ranks_.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

// --- connections ---

void JobStoreServer::serve() {
  for (;;) {
    std::vector<pollfd> events{{wake_.get(), POLLIN, 0},
                               {listener_.get(), static_cast<short>(accepts_ ? POLLIN : 0), 0}};
    for (const Connection& connection : connections_) {
      events.push_back(
          {connection->fd(), static_cast<short>(connection->has_unsent() ? POLLIN | POLLOUT : POLLIN), 0});
    }
    ::poll(events.data(), events.size(), wait_ms());
    accepts_ = true;
    size_t index = 2;
    for (auto at = connections_.begin(); at != connections_.end(); ++index) {
      const short happened = events[index].revents;
      if ((happened & POLLOUT) != 0) (*at)->flush();
      const bool is_over = (happened & ~POLLOUT) != 0 && !serve_connection(*at);
      at = is_over ? connections_.erase(at) : std::next(at);
    }
    if (events[0].revents != 0) {
      eventfd_t count = 0;
      ::eventfd_read(wake_.get(), &count);
      const base::MutexLock lock(mutex_);
      if (ending_) return;
      for (base::UniqueFd& fd : own_connections_) add_connection(std::move(fd));
      own_connections_.clear();
    }
    if (events[1].revents != 0) accept_some();
    drop_late_unauthenticated();
    expire_waiters();
  }
}

int JobStoreServer::wait_ms() const {
  constexpr std::chrono::milliseconds kLook{1000};
  Clock::time_point until = Clock::now() + kLook;
  for (const Waiter& waiter : waiters_) until = std::min(until, waiter.deadline);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, kLook.count()));
}

void JobStoreServer::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    base::UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      // Out of descriptors: the others wait in the kernel's queue for a second.
      accepts_ = errno == EAGAIN || errno == ECONNABORTED || errno == EINTR;
      return;
    }
    add_connection(std::move(fd));
  }
}

void JobStoreServer::add_connection(base::UniqueFd fd) {
  connections_.push_back(std::make_shared<SecurePeer>(std::move(fd), token_, Purpose::kStore, world_size_));
}

// A rank of the job authenticates within milliseconds.
void JobStoreServer::drop_late_unauthenticated() {
  const auto unauthenticated = [](const Connection& connection) { return connection->rank() < 0; };
  auto count = static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(), unauthenticated));
  const Clock::time_point now = Clock::now();
  connections_.remove_if([&](const Connection& connection) {
    if (!unauthenticated(connection)) return false;
    // The oldest come first.
    const bool is_late = now - connection->since() > kProofTime || count > kMaxUnauthenticated;
    if (is_late) --count;
    return is_late;
  });
}

bool JobStoreServer::serve_connection(const Connection& connection) {
  const bool was_authenticated = connection->rank() >= 0;
  const bool stays = connection->read();
  if (!was_authenticated && connection->rank() >= 0) record_rank(connection->rank());
  while (const std::optional<std::string> request = connection->next()) answer(connection, *request);
  return stays;
}

void JobStoreServer::record_rank(int rank) {
  const base::MutexLock lock(mutex_);
  ranks_.insert(rank);
  rank_came_.notify_all();
}

// --- requests ---

void JobStoreServer::answer(const Connection& connection, const std::string& request) {
  std::string answer;
  try {
    answer = answer_of(connection, request);
  } catch (const MalformedMessage& error) {
    answer = MessageWriter(static_cast<uint8_t>(StoreAnswer::kRefused)).text(error.what()).bytes();
  }
  if (!answer.empty()) connection->send(answer);
}

std::string JobStoreServer::answer_of(const Connection& connection, const std::string& request) {
  MessageReader reader(request);
  switch (static_cast<StoreCall>(reader.byte())) {
    case StoreCall::kSet: {
      const std::string key = reader.text();
      store(key, reader.text());
      return done().bytes();
    }
    case StoreCall::kMultiSet:
      while (!reader.at_end()) {
        const std::string key = reader.text();
        store(key, reader.text());
      }
      return done().bytes();
    case StoreCall::kCompareSet: {
      const std::string key = reader.text(), expected = reader.text();
      std::string desired = reader.text();
      const auto found = values_.find(key);
      // A missing key counts as an empty value; it is not created if `expected` is another value.
      const bool matches = found == values_.end() ? expected.empty() : found->second == expected;
      if (matches) store(key, std::move(desired));
      const auto now = values_.find(key);
      return done().text(now == values_.end() ? expected : now->second).bytes();
    }
    case StoreCall::kAppend: {
      const std::string key = reader.text();
      const auto found = values_.find(key);
      store(key, (found == values_.end() ? "" : found->second) + reader.text());
      return done().bytes();
    }
    case StoreCall::kAdd: {
      const std::string key = reader.text();
      const auto found = values_.find(key);
      const int64_t before = found == values_.end() ? 0 : number_of(found->second);
      int64_t after = 0;
      if (__builtin_add_overflow(before, reader.number(), &after)) {
        throw MalformedMessage("add() beyond what a number of 64 bits holds");
      }
      store(key, std::to_string(after));
      return done().number(after).bytes();
    }
    case StoreCall::kDelete: return done().number(static_cast<int64_t>(values_.erase(reader.text()))).bytes();
    case StoreCall::kCheck: {
      const std::vector<std::string> keys = reader.texts();
      const bool all = std::all_of(keys.begin(), keys.end(),
                                   [this](const std::string& key) { return values_.contains(key); });
      return done().number(all ? 1 : 0).bytes();
    }
    case StoreCall::kCount: return done().number(static_cast<int64_t>(values_.size())).bytes();
    case StoreCall::kList: {
      std::vector<std::string> keys;
      for (const auto& [key, value] : values_) keys.push_back(key);
      return done().texts(keys).bytes();
    }
    case StoreCall::kGet: wait_for(connection, reader, /*wants_values=*/true); return "";
    case StoreCall::kWait: wait_for(connection, reader, /*wants_values=*/false); return "";
  }
  throw MalformedMessage("a call that the store does not know");
}

void JobStoreServer::wait_for(const Connection& connection, MessageReader& reader, bool wants_values) {
  const std::chrono::milliseconds timeout(reader.number());
  Waiter waiter{connection, reader.texts(), {}, wants_values, Clock::now() + timeout};
  for (const std::string& key : waiter.keys) {
    if (!values_.contains(key)) waiter.missing.insert(key);
  }
  if (waiter.missing.empty()) return answer_waiter(waiter, StoreAnswer::kDone);
  waiters_.push_back(std::move(waiter));
}

void JobStoreServer::answer_waiter(Waiter& waiter, StoreAnswer answer) {
  const Connection connection = waiter.connection.lock();
  if (!connection) return;
  MessageWriter writer(static_cast<uint8_t>(answer));
  if (answer == StoreAnswer::kDone && waiter.wants_values) {
    std::vector<std::string> values;
    for (const std::string& key : waiter.keys) {
      const auto found = values_.find(key);  // another rank may have deleted it
      values.push_back(found == values_.end() ? "" : found->second);
    }
    writer.texts(values);
  }
  connection->send(writer.bytes());
}

void JobStoreServer::expire_waiters() {
  const Clock::time_point now = Clock::now();
  waiters_.remove_if([&](Waiter& waiter) {
    if (waiter.connection.expired()) return true;
    if (now < waiter.deadline) return false;
    answer_waiter(waiter, StoreAnswer::kTimeout);
    return true;
  });
}

void JobStoreServer::store(const std::string& key, std::string value) {
  const bool is_new = values_.insert_or_assign(key, std::move(value)).second;
  if (!is_new) return;
  waiters_.remove_if([&](Waiter& waiter) {
    if (waiter.missing.erase(key) == 0 || !waiter.missing.empty()) return false;
    answer_waiter(waiter, StoreAnswer::kDone);
    return true;
  });
}

}  // namespace lockstep::comm
