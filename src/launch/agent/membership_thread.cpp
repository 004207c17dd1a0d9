#include "launch/agent/membership_thread.h"

#include <exception>
#include <utility>

#include "base/silent_thread.h"

namespace lockstep::launcher {
namespace {

// The lease is this part of the heartbeat timeout, and renewed this often while it lasts. A
// process that stops running loses its workers before the others, who wait for the whole timeout
// since they last heard of it, go on without it.
constexpr int kTimeoutParts = 15;
constexpr int kLeaseParts = 10;

}  // namespace

MembershipThread::MembershipThread(base::EventLoop& loop, MembershipListener& listener, Keeper& keeper,
                                   const Join& join)
    : loop_(loop), listener_(listener), keeper_(keeper) {
  membership_ = join(own_loop_, *this);
  thread_ = base::start_without_signals([this] { run(); });
}

MembershipThread::~MembershipThread() {
  own_loop_.post([this] { own_loop_.stop(); });
  thread_.join();
  own_loop_.cancel(lease_timer_);
}

void MembershipThread::run() {
  try {
    own_loop_.run();
  } catch (...) {
    keeper_.end();
    pass_on([error = std::current_exception()] { std::rethrow_exception(error); });
  }
}

void MembershipThread::pass_on(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
  loop_.post([this, alive = std::weak_ptr<const bool>(alive_)] {
    if (alive.lock()) make_next_call();
  });
}

void MembershipThread::make_next_call() {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex_);
    if (calls_.empty()) return;
    call = std::move(calls_.front());
    calls_.pop_front();
  }
  call();
}

void MembershipThread::ask(std::function<void(Membership&)> call) {
  own_loop_.post([this, call = std::move(call)] { call(*membership_); });
}

// --- from the membership

void MembershipThread::joined(std::chrono::milliseconds heartbeat_timeout) {
  lease_ = heartbeat_timeout * kLeaseParts / kTimeoutParts;
  own_loop_.cancel(lease_timer_);
  keep_lease();
}

void MembershipThread::keep_lease() {
  keeper_.renew(lease_);
  lease_timer_ =
      own_loop_.after(base::EventLoop::Clock::duration(lease_) / kLeaseParts, [this] { keep_lease(); });
}

uint16_t MembershipThread::reserve_store_port(int generation) {
  return listener_.reserve_store_port(generation);
}
void MembershipThread::start(const Generation& generation) {
  pass_on([this, generation] { listener_.start(generation); });
}
void MembershipThread::stop(int generation, const std::string& reason) {
  pass_on([this, generation, reason] { listener_.stop(generation, reason); });
}
void MembershipThread::note(const std::string& text) {
  pass_on([this, text] { listener_.note(text); });
}
void MembershipThread::stalled(int generation, const Stall& stall) {
  pass_on([this, generation, stall] { listener_.stalled(generation, stall); });
}

void MembershipThread::finish(const JobOutcome& outcome) {
  own_loop_.cancel(lease_timer_);
  {
    // Workers of a start that the launcher has not come to yet must not start any more.
    const std::lock_guard lock(mutex_);
    calls_.clear();
  }
  pass_on([this, outcome] { listener_.finish(outcome); });
  keeper_.end();
}

// --- to the membership

void MembershipThread::worker_failed(const JobFailure& failure) {
  ask([failure](Membership& membership) { membership.worker_failed(failure); });
}
void MembershipThread::progress(int generation, const std::vector<RankView>& workers) {
  ask([generation, workers](Membership& membership) { membership.progress(generation, workers); });
}
void MembershipThread::succeeded(int generation) {
  ask([generation](Membership& membership) { membership.succeeded(generation); });
}
void MembershipThread::stopped(int generation) {
  ask([generation](Membership& membership) { membership.stopped(generation); });
}
void MembershipThread::stuck(int generation, const std::string& reason) {
  ask([generation, reason](Membership& membership) { membership.stuck(generation, reason); });
}
void MembershipThread::leave(int signal) {
  ask([signal](Membership& membership) { membership.leave(signal); });
}

}  // namespace lockstep::launcher
