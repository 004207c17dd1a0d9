#include "comm/shm/group.h"

#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "cluster/node_resources.h"

namespace lockstep::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;

void relax_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How to wait for a peer: spin for some microseconds, then yield to other threads, then sleep, for
// longer the longer it takes. The delay is at most a sixteenth of the time waited so far, and no
// waiter has to be woken, so that publishing needs no system call.
class Waiter {
 public:
  // `may_spin` is false if ranks outnumber the CPUs: the peer needs this CPU.
  explicit Waiter(bool may_spin) : may_spin_(may_spin) {}

  // Waits a moment. True about once a millisecond, if the wait is already long: then the caller
  // checks the peers.
  bool pause() {
    if (may_spin_ && spins_ < kSpins) {
      ++spins_;
      relax_cpu();
      return false;
    }
    const auto now = Clock::now();
    if (began_ == Clock::time_point{}) began_ = now;
    waited_ = now - began_;
    if (waited_ < kYieldTime) {
      // Spins between the yields: on two threads of one core a loop of system calls would slow down
      // the peer that this rank waits for.
      if (may_spin_) {
        for (int i = 0; i < kSpinsPerYield; ++i) relax_cpu();
      }
      sched_yield();
      return false;
    }
    std::this_thread::sleep_for(std::clamp<Clock::duration>(waited_ / 16, kShortestSleep, kLongestSleep));
    return true;
  }

  // Call it after progress: the next pause is short again.
  void reset() {
    spins_ = 0;
    began_ = {};
    waited_ = {};
  }

  // Time since the first pause after construction or reset() that read the clock; zero before.
  Clock::duration waited() const { return waited_; }

 private:
  static constexpr int kSpins = 100;  // some microseconds
  static constexpr int kSpinsPerYield = 20;
  static constexpr std::chrono::microseconds kYieldTime{1000};
  static constexpr std::chrono::microseconds kShortestSleep{50};
  static constexpr std::chrono::microseconds kLongestSleep{1000};

  bool may_spin_;
  int spins_ = 0;
  Clock::time_point began_{};
  Clock::duration waited_{};
};

// Whether this process may use at least `count` CPUs.
bool cpus_suffice_for(int count) { return static_cast<int>(cluster::affinity_cpus().size()) >= count; }

constexpr auto kProcessCheckPeriod = std::chrono::milliseconds(20);
constexpr std::string_view kPrefix = "[shm] ";

// "rank 1 has", "ranks 1,2 have"
std::string who_has(const std::vector<int>& ranks) {
  return fmt::format("{} {} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ","),
                     ranks.size() == 1 ? "has" : "have");
}

}  // namespace

// --- operations ---

GroupWork::GroupWork(std::shared_ptr<Group> group, c10d::OpType type, std::chrono::milliseconds timeout)
    : c10d::Work(group->rank(), type), group_(std::move(group)), timeout_(timeout) {}

bool GroupWork::isCompleted() {
  if (!done) group_->poll(*this);
  return done || group_->failure() != nullptr;
}

bool GroupWork::isSuccess() const { return done; }

std::exception_ptr GroupWork::exception() const { return done ? nullptr : group_->failure(); }

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  if (!done) group_->wait(*this, timeout == kNoTimeout ? timeout_ : timeout);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFuture() {
  wait();
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(tensors);
  return future;
}

// --- the group ---

// Throws if two threads use the group at the same time.
class Group::Exclusive {
 public:
  explicit Exclusive(Group& group) : group_(group) {
    if (group_.in_use_.exchange(true, std::memory_order_acquire)) {
      throw ConfigError("shm", "two threads use one group at the same time: give each thread its own");
    }
  }
  ~Exclusive() { group_.in_use_.store(false, std::memory_order_release); }

 private:
  Group& group_;
};

Group::Group(std::vector<Peer> peers, int rank)
    : peers_(std::move(peers)),
      rank_(rank),
      may_spin_(cpus_suffice_for(static_cast<int>(peers_.size()))),
      own_regions_(std::make_shared<OwnRegions>(peers_[rank].memory)),
      collectives_(peers_, rank, own_regions_),
      point_to_point_(peers_, rank, own_regions_) {}

Group::~Group() { close(); }

void Group::close() noexcept {
  if (std::exchange(closed_, true)) return;
  const size_t num_pending = collectives_.num_pending() + point_to_point_.num_pending();
  if (num_pending > 0) {
    base::log_line(base::LogLevel::kWarning, "shm",
                   fmt::format("rank {} closed its group with {} operations pending", rank_, num_pending));
  }
  if (failure_ == nullptr) {
    failure_ = std::make_exception_ptr(ConfigError("shm", "the group is closed"));
    own_home().state.store(RankState::kLeft, std::memory_order_release);
  }
  collectives_.clear();
  point_to_point_.clear();
}

void Group::throw_if_broken() const {
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
}

void Group::check_before_start() {
  throw_if_broken();
  // A peer that failed may have published its part before: without this check the operation could
  // succeed here although it failed there.
  for (const auto& peer : peers_) {
    if (peer.home().state.load(std::memory_order_acquire) == RankState::kFailed) {
      check_peers(nullptr);
    }
  }
}

void Group::start(c10::intrusive_ptr<CollectiveWork> work) {
  const Exclusive exclusive(*this);
  check_before_start();
  collectives_.start(std::move(work));
}

void Group::start(c10::intrusive_ptr<MessageWork> work) {
  const Exclusive exclusive(*this);
  check_before_start();
  try {
    point_to_point_.start(std::move(work));
  } catch (const Error&) {
    break_group(std::current_exception());
    throw;
  }
}

bool Group::progress() {
  try {
    bool any = collectives_.progress();
    if (!point_to_point_.idle()) {
      any |= point_to_point_.progress();
    }
    return any;
  } catch (const Error&) {
    break_group(std::current_exception());
    throw;
  }
}

void Group::wait(const GroupWork& work, Milliseconds timeout) {
  const Exclusive exclusive(*this);
  Waiter waiter(may_spin_);
  Clock::time_point slow_since{};
  while (!work.done) {
    throw_if_broken();
    if (progress()) {
      waiter.reset();
    } else if (waiter.pause()) {
      check_peers(&work);
      const auto now = Clock::now();
      if (slow_since == Clock::time_point{}) {
        slow_since = now - waiter.waited();
      }
      if (now - slow_since > timeout && !work.done) {
        time_out(work, timeout);
      }
    }
  }
}

void Group::poll(const GroupWork& work) {
  const Exclusive exclusive(*this);
  if (failure_ != nullptr) return;
  try {
    // Checking the peers costs system calls.
    if (!progress() && ++num_idle_polls_ % 64 == 0) {
      check_peers(&work);
    }
  } catch (const Error&) {
    // Kept in failure_.
  }
}

void Group::check_peers(const GroupWork* waited_for) {
  const auto now = Clock::now();
  const bool check_processes = now - processes_checked_ > kProcessCheckPeriod;
  if (check_processes) {
    processes_checked_ = now;
  }
  try {
    for (int peer = 0; peer < size(); ++peer) {
      const auto state = peers_[peer].home().state.load(std::memory_order_acquire);
      if (peer != rank_ &&
          (state != RankState::kActive || (check_processes && !peers_[peer].process.alive()))) {
        check_peer(peer, waited_for);
      }
    }
  } catch (const CommError&) {
    break_group(std::current_exception());
    throw;
  }
}

// Throws if the group cannot continue without the peer, which has failed, left or died.
void Group::check_peer(int peer, const GroupWork* waited_for) {
  // What the peer published before may be enough.
  while (progress()) {
  }
  if (waited_for != nullptr && waited_for->done) return;
  const Home& home = peers_[peer].home();
  switch (home.state.load(std::memory_order_acquire)) {
    case RankState::kFailed:
      throw CommError(
          "shm", home.failure.text,
          home.failure.can_rebuild != 0 ? CommError::Recovery::kRebuild : CommError::Recovery::kFatal,
          home.failure.rank < 0 ? std::nullopt : std::optional<int>(home.failure.rank));
    case RankState::kLeft:
      if (needs(peer, waited_for)) {
        throw CommError("shm", fmt::format("rank {} left the group, but {}", peer, waiting_text(waited_for)),
                        CommError::Recovery::kRebuild, peer);
      }
      return;
    case RankState::kActive:
      throw CommError("shm",
                      fmt::format("rank {} died (process {}), {}", peer, peers_[peer].process.pid(),
                                  waiting_text(waited_for)),
                      CommError::Recovery::kRebuild, peer);
  }
}

bool Group::needs(int peer, const GroupWork* waited_for) const {
  if (const auto* message = dynamic_cast<const MessageWork*>(waited_for)) return message->peer == peer;
  if (collectives_.idle()) return false;
  const auto ranks = collectives_.blocker().ranks;
  return std::find(ranks.begin(), ranks.end(), peer) != ranks.end();
}

std::string Group::waiting_text(const GroupWork* waited_for) const {
  const GroupWork* work = waited_for;
  if (dynamic_cast<const MessageWork*>(work) == nullptr && !collectives_.idle()) {
    work = &collectives_.front();
  }
  return fmt::format("rank {} waits in {}", rank_, work == nullptr ? "nothing" : work->description());
}

void Group::time_out(const GroupWork& work, Milliseconds timeout) {
  std::vector<int> ranks;
  const char* what = "taken part";
  if (const auto* message = dynamic_cast<const MessageWork*>(&work)) {
    ranks = {message->peer};
  } else if (!collectives_.idle()) {
    auto blocker = collectives_.blocker();
    ranks = std::move(blocker.ranks);
    what = blocker.what;
  }
  break_group(std::make_exception_ptr(CommError(
      "shm",
      fmt::format("{} not {} within {} ms, {}", ranks.empty() ? "a rank has" : who_has(ranks), what,
                  timeout.count(), waiting_text(&work)),
      CommError::Recovery::kRebuild, ranks.empty() ? std::nullopt : std::optional<int>(ranks.front()))));
  std::rethrow_exception(failure_);
}

void Group::break_group(std::exception_ptr error) noexcept {
  if (failure_ != nullptr) return;
  failure_ = error;
  Home& home = own_home();
  std::string text = "an internal error";
  home.failure.rank = -1;
  try {
    std::rethrow_exception(error);
  } catch (const CommError& comm) {
    text = comm.what();
    home.failure.rank = comm.failed_rank().value_or(-1);
    home.failure.can_rebuild = comm.can_rebuild() ? 1 : 0;
  } catch (const std::exception& other) {
    text = other.what();
  }
  if (text.starts_with(kPrefix)) {
    text.erase(0, kPrefix.size());
  }
  std::strncpy(home.failure.text, text.c_str(), sizeof home.failure.text - 1);
  home.state.store(RankState::kFailed, std::memory_order_release);
  collectives_.clear();
  point_to_point_.clear();
}

}  // namespace lockstep::comm::shm
