#include "launch/agent/agent.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/exit_status.h>
#include <sys/epoll.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "cluster/topology.h"
#include "launch/rendezvous/open_files.h"

namespace lockstep::launcher {
namespace {

constexpr std::chrono::milliseconds kStatusPeriod{500};
// A process with LibTorch takes its time to end: its peers notice when it begins to.
constexpr std::chrono::milliseconds kCauseGrace{500};
// gdb takes seconds and memory for each.
constexpr size_t kMaxStacks = 8;

std::vector<int> all_signals(const RunOptions& options) {
  std::vector<int> signals = options.stop_signals;
  signals.insert(signals.end(), options.notify_signals.begin(), options.notify_signals.end());
  return signals;
}

std::string counted(int number, const char* what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

bool keeps_logs(const RunOptions& options) {
  if (options.log_dir == "/dev/null") return false;
  return options.redirects.any() || options.tee.any() || !options.stdout_filters.empty() ||
         !options.stderr_filters.empty();
}

}  // namespace

Agent::Agent(base::EventLoop& loop, const RunOptions& options, Keeper& keeper, Consoles consoles)
    : loop_(loop),
      options_(options),
      keeper_(keeper),
      consoles_(consoles),
      signals_(all_signals(options)),
      logs_(options.log_dir, options.run_id, keeps_logs(options)) {
  ::getrlimit(RLIMIT_NOFILE, &open_files_);
  raise_open_files();
  loop_.watch(signals_.fd(), EPOLLIN, [this](uint32_t) { on_signals(); });
  // Where lines have no prefix, bytes pass as they come: the terminal is the program's.
  if (consoles_.err.is_decorated() && !options_.quiet && !options_.prefix_template.empty()) show_status();
}

Agent::~Agent() {
  loop_.cancel(status_timer_);
  loop_.cancel(stuck_timer_);
  loop_.cancel(progress_timer_);
  loop_.cancel(cause_timer_);
  loop_.cancel(kill_timer_);
  loop_.forget(signals_.fd());
}

bool Agent::every_worker_refused() const {
  if (!workers_) return false;
  for (int i = 0; i < workers_->generation().local_world_size(); ++i) {
    if (!workers_->ended(i)) return false;
    const base::ExitState& state = workers_->exit_state(i);
    if (state.signaled || state.code != kExitUsage) return false;
  }
  return true;
}

std::string Agent::kept_logs() const { return keeps_logs(options_) ? logs_.path().string() : ""; }

uint16_t Agent::reserve_store_port(int) {
  const std::lock_guard lock(store_port_mutex_);
  store_port_.reset();
  if (options_.hand_store_over) {
    store_port_ = StorePort::to_hand_over(options_.store_addr);
  } else {
    store_port_.emplace(options_.store_port);
  }
  return store_port_->number();
}

void Agent::start(const Generation& generation) {
  stopping_ = ending_ = failure_told_ = killed_ = false;
  suspect_.reset();
  loop_.cancel(cause_timer_);
  loop_.cancel(stuck_timer_);
  workers_.reset();
  if (generation.number > 0) {
    say(fmt::format("[run] life number {} of the job: {} on {}, restart {} of {}{}\n", generation.number,
                    counted(generation.world_size(), "rank"),
                    counted(static_cast<int>(generation.nodes.size()), "node"), generation.restart_count,
                    options_.max_restarts, unsaid_reason_.empty() ? "" : ": " + unsaid_reason_));
  } else {
    say_threads(generation.local_world_size());
  }
  unsaid_reason_.clear();
  // Not locked while the workers start, which takes as long as their file system.
  const auto heir_fd = [this] {
    const std::lock_guard lock(store_port_mutex_);
    return store_port_ ? store_port_->heir_fd() : -1;
  };
  workers_ = std::make_unique<WorkerGroup>(Workplace{loop_, keeper_, consoles_, logs_, options_, open_files_},
                                           generation, heir_fd(),
                                           [this](int local_rank) { on_worker_exit(local_rank); });
  {
    const std::lock_guard lock(store_port_mutex_);
    if (store_port_) store_port_->release();
  }
  loop_.cancel(progress_timer_);
  if (options_.stall_timeout.count() > 0) tell_progress();
}

// Four times within the timeout, so that a stall is never told much too late.
void Agent::tell_progress() {
  progress_timer_ = loop_.after(options_.stall_timeout / 4, [this] { tell_progress(); });
  if (ending_ || !workers_) return;
  std::vector<RankView> views(static_cast<size_t>(workers_->generation().local_world_size()));
  for (size_t i = 0; i < views.size(); ++i) {
    views[i].ended = workers_->ended(static_cast<int>(i));
    views[i].progress = workers_->progress(static_cast<int>(i));
  }
  membership_->progress(workers_->generation().number, views);
}

void Agent::show_status() {
  status_timer_ = loop_.after(kStatusPeriod, [this] { show_status(); });
  JobStatus status;
  status.elapsed = std::chrono::duration_cast<std::chrono::seconds>(base::EventLoop::Clock::now() - began_);
  status.max_restarts = options_.max_restarts;
  if (workers_ && workers_->running() > 0) {
    const Generation& generation = workers_->generation();
    status.ranks = generation.world_size();
    status.nodes = static_cast<int>(generation.nodes.size());
    status.restarts = generation.restart_count;
    status.steps = workers_->steps();
  } else {
    status.waiting_for = options_.max_nodes > 1 ? "waiting for the other nodes" : "starting";
  }
  consoles_.err.show_status(format_status(status));
}

void Agent::note(const std::string& text) { say(fmt::format("[run] {}\n", text)); }

void Agent::stalled(int generation, const Stall& stall) {
  if (ending_ || !workers_ || workers_->generation().number != generation) return;
  consoles_.err.write(fmt::format("[{}] {}", options_.component, stall.report));
  if (options_.on_stall == RunOptions::OnStall::kAbort) {
    membership_->leave(SIGABRT);
    return;
  }
  const int first = workers_->generation().first_rank();
  for (const int rank : stall.missing) {
    const int local_rank = rank - first;
    if (local_rank < 0 || local_rank >= workers_->generation().local_world_size()) continue;
    if (workers_->ended(local_rank)) continue;
    if (options_.on_stall == RunOptions::OnStall::kRestart) {
      kill_worker(local_rank);
    } else if (stacks_.size() < kMaxStacks) {
      stacks_.push_back(std::make_unique<StackDump>(loop_, consoles_.err, workers_->pid(local_rank),
                                                    fmt::format("  rank {}: ", rank)));
    }
  }
}

void Agent::on_worker_exit(int local_rank) {
  const int generation = workers_->generation().number;
  const base::ExitState& state = workers_->exit_state(local_rank);
  // After a signal to this launcher, one thing is news: that a worker has saved.
  const bool saved = stop_signal_ != 0 && !state.signaled && state.code == kExitPreempted;
  if (!state.success() && !failure_told_ && (!ending_ || saved)) {
    const bool is_consequence = !state.signaled && state.code == kExitCommunication;
    if (is_consequence) {
      await_cause(local_rank);
    } else {
      tell_failure(local_rank);
    }
  }
  if (workers_->running() > 0) return;
  if (suspect_ && !failure_told_) tell_failure(*suspect_);
  loop_.cancel(kill_timer_);
  loop_.cancel(stuck_timer_);
  if (stopping_) {
    stopping_ = false;
    membership_->stopped(generation);
  } else if (!failure_told_ && workers_->all_succeeded()) {
    membership_->succeeded(generation);
  }
  // Else a signal to this launcher has ended them, and the job's word to stop is on its way.
}

void Agent::await_cause(int local_rank) {
  if (suspect_) return;
  suspect_ = local_rank;
  cause_timer_ = loop_.after(kCauseGrace, [this] {
    if (!failure_told_) tell_failure(*suspect_);
  });
}

void Agent::tell_failure(int local_rank) {
  loop_.cancel(cause_timer_);
  failure_told_ = true;
  membership_->worker_failed(explain_failure(local_rank));
  // Not waiting for the job's word: nobody runs on after this.
  if (options_.failure_grace.count() == 0) {
    end_workers(SIGTERM);
  } else if (!ending_) {
    kill_timer_ = loop_.after(options_.failure_grace, [this] { end_workers(SIGTERM); });
  }
}

// A worker that the keeper has killed did nothing wrong.
JobFailure Agent::explain_failure(int local_rank) const {
  JobFailure failure = workers_->failure_of(local_rank);
  if (!failure.state.signaled || failure.state.code != SIGKILL) return failure;
  if (const auto lapse = keeper_.lapse()) {
    failure.message = fmt::format(
        "its launcher did not run for {:.1f} s, so it was killed: the node was stopped "
        "or overloaded",
        std::chrono::duration<double>(*lapse).count());
  }
  return failure;
}

void Agent::stop(int generation, const std::string& reason) {
  if (!workers_ || workers_->running() == 0) {
    unsaid_reason_ = reason;
    membership_->stopped(generation);
    return;
  }
  if (!reason.empty()) say(fmt::format("[run] stopping the workers: {}\n", reason));
  stopping_ = true;
  // After a failure of our own their end is on its way.
  if (!failure_told_) end_workers(SIGTERM);
}

void Agent::end_workers(int signal) {
  if (!ending_) {
    ending_ = true;
    loop_.cancel(kill_timer_);
    kill_timer_ = loop_.after(options_.shutdown_timeout, [this] { kill_workers(); });
    workers_->send_signal(signal);
  }
}

void Agent::kill_workers() {
  workers_->send_signal(SIGKILL);
  expect_end();
}

void Agent::kill_worker(int local_rank) {
  ::kill(-workers_->pid(local_rank), SIGKILL);
  expect_end();
}

void Agent::expect_end() {
  if (std::exchange(killed_, true)) return;
  stuck_timer_ = loop_.after(options_.kill_timeout, [this] { give_up(); });
}

void Agent::give_up() {
  if (!workers_ || workers_->running() == 0) return;
  // One that was told to end alone leaves the others running.
  workers_->send_signal(SIGKILL);
  const std::string reason = workers_->give_up();
  consoles_.err.write(fmt::format("[{}] {}\n", options_.component, reason));
  membership_->stuck(workers_->generation().number, reason);
}

void Agent::finish(const JobOutcome& outcome) {
  outcome_ = outcome;
  all_refused_ = every_worker_refused();
  // Where workers still run the job is out of reach: nobody must go on alone.
  loop_.cancel(kill_timer_);
  loop_.cancel(stuck_timer_);
  loop_.cancel(cause_timer_);
  loop_.cancel(progress_timer_);
  loop_.cancel(status_timer_);
  stacks_.clear();
  workers_.reset();
  consoles_.err.show_status("");
  loop_.stop();
}

void Agent::on_signals() {
  while (const std::optional<int> signal = signals_.next()) {
    const auto& notify = options_.notify_signals;
    if (std::find(notify.begin(), notify.end(), *signal) != notify.end()) {
      if (workers_) workers_->notify(*signal);
    } else {
      on_stop_signal(*signal);
    }
  }
}

void Agent::on_stop_signal(int signal) {
  if (stop_signal_ != 0) {
    // Asked twice: no more patience.
    if (workers_) kill_workers();
    return;
  }
  stop_signal_ = signal;
  if (workers_ && workers_->running() > 0) end_workers(signal);
  membership_->leave(signal);
}

void Agent::say_threads(int ranks) {
  if (ranks == 1 || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  say(fmt::format("[run] OMP_NUM_THREADS={} for each of {} ranks here\n",
                  cluster::threads_of_this_process(base::Environment::of_process(), ranks), ranks));
}

void Agent::say(const std::string& line) {
  if (!options_.quiet) consoles_.err.write(line);
}

}  // namespace lockstep::launcher
