#include "launcher/agent/run_job.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <optional>
#include <string>
#include <utility>

#include "base/event_loop.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/network.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "cluster/node_resources.h"
#include "launcher/agent/join_job.h"
#include "launcher/agent/keeper.h"
#include "launcher/agent/log_folder.h"
#include "launcher/agent/run_options.h"
#include "launcher/agent/worker_group.h"
#include "launcher/agent/worker_output.h"
#include "launcher/error_file.h"
#include "launcher/job.h"
#include "launcher/membership.h"
#include "launcher/rendezvous/open_files.h"
#include "launcher/signal_queue.h"

namespace lockstep::launcher {
namespace {

constexpr std::chrono::milliseconds kStatusPeriod{500};
// A process with LibTorch needs some time to end; its peers notice it at the beginning of that.
constexpr std::chrono::milliseconds kCauseGrace{500};
// gdb needs seconds and memory for each dump.
constexpr size_t kMaxStacks = 8;
constexpr std::chrono::seconds kStackDumpLimit{60};  // gdb reads LibTorch's symbols first

// Reserves a TCP port for the store of rank 0: no process that asks for a free port gets it, but
// rank 0, which knows its number, can listen on it. The socket is bound and does not listen, and
// Linux lets a second socket that also sets SO_REUSEADDR (as every store of PyTorch does) bind
// and listen beside it. A rank 0 that uses Lockstep inherits a listening socket instead.
class StorePort {
 public:
  // port 0: any free one. Throws ConfigError: there is none, or some process listens on it.
  explicit StorePort(uint16_t port) {
    socket_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (!socket_ || ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        ::bind(socket_.get(), generic, length) != 0 || ::getsockname(socket_.get(), generic, &length) != 0) {
      const std::string which = port == 0 ? "a free port" : fmt::format("port {}", port);
      throw ConfigError("run", fmt::format("cannot have {} for the workers' store: {}; without --master-port "
                                           "a free one is taken",
                                           which, std::strerror(errno)));
    }
    number_ = ntohs(address.sin_port);
  }
  // A free port of this address with a listening socket that rank 0 inherits.
  static StorePort listening(const std::string& address) {
    return StorePort(base::listen_on_free_port(address));
  }

  uint16_t number() const { return number_; }
  // The socket that rank 0 inherits, or -1.
  int inherited_fd() const { return listens_ ? socket_.get() : -1; }
  // Call it when rank 0 has inherited the socket: if it stayed open here, a client of a dead rank
  // 0 would wait in our queue instead of being refused.
  void release() {
    if (listens_) socket_.reset();
  }

 private:
  explicit StorePort(base::ListenSocket socket)
      : socket_(std::move(socket.fd)), number_(socket.port), listens_(true) {}

  base::UniqueFd socket_;
  uint16_t number_ = 0;
  bool listens_ = false;
};

// Prints the stacks of a process's threads, by gdb, without blocking the loop. Prints nothing if
// there is no gdb or no permission: the stacks are only a hint.
class StackDump {
 public:
  // prefix: before each line.
  StackDump(base::EventLoop& loop, Console& console, pid_t pid, const std::string& prefix) : loop_(loop) {
    base::ProcessOptions process;
    process.environment = base::Environment::of_process();
    const std::optional<std::string> gdb = base::find_program("gdb", process.environment);
    if (!gdb) return;
    StreamSinks sinks;
    sinks.console = &console;
    sinks.prefix = prefix;
    lines_ = std::make_unique<WorkerStream>(loop_, std::move(sinks));
    const base::UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    process.program = *gdb;
    process.arguments = {*gdb,  "-nx",           "-batch", "-p",   std::to_string(pid),
                         "-ex", "set width 160", "-ex",    "bt 25"};
    process.stdout_fd = lines_->worker_fd();
    process.stderr_fd = nowhere.get();
    gdb_ = std::make_unique<base::ChildProcess>(base::ChildProcess::start(process));
    lines_->release_worker_fd();
    limit_ = loop_.after(kStackDumpLimit, [this] { finish(); });
    if (gdb_->exit_fd() >= 0) {
      loop_.watch(gdb_->exit_fd(), EPOLLIN, [this](uint32_t) { finish(); });
    }
  }
  StackDump(const StackDump&) = delete;
  StackDump& operator=(const StackDump&) = delete;
  // Ends gdb if it still runs.
  ~StackDump() { finish(); }

 private:
  void finish() {
    if (!gdb_) return;
    loop_.cancel(limit_);
    if (gdb_->exit_fd() >= 0) loop_.forget(gdb_->exit_fd());
    lines_->finish();
    gdb_.reset();
  }

  base::EventLoop& loop_;
  std::unique_ptr<WorkerStream> lines_;
  std::unique_ptr<base::ChildProcess> gdb_;
  base::EventLoop::Timer limit_;
};

// This node's part of a job: does what the job decides (MembershipListener), reports to the job
// what happens here, and handles signals to the launcher.
class Agent final : public MembershipListener {
 public:
  Agent(base::EventLoop& loop, const RunOptions& options, Keeper& keeper, Consoles consoles);
  ~Agent() override;

  // Before the loop runs. The membership outlives the agent's use of it.
  void join(Membership& membership) { membership_ = &membership; }
  // How the job ended; set when the loop stops.
  const std::optional<JobOutcome>& outcome() const { return outcome_; }
  // Whether every worker of this node ended with kExitUsage.
  bool all_usage_errors() const { return all_usage_errors_; }
  // The folder of the log files that are kept, or "".
  std::string kept_logs() const;

  // The only member that another thread may call, before start().
  uint16_t reserve_store_port(int generation) override;
  void start(const Generation& generation) override;
  void stop(int generation, const std::string& reason) override;
  void note(const std::string& text) override;
  void stalled(int generation, const Stall& stall) override;
  void finish(const JobOutcome& outcome) override;

 private:
  void on_worker_exit(int local_rank);
  void report_failure(int local_rank);
  // A worker ended because another one failed, whose end may be noticed a moment later: waits for
  // that before the failure is reported.
  void await_cause(int local_rank);
  JobFailure explain_failure(int local_rank) const;
  bool every_worker_had_usage_error() const;
  void on_signals();
  void on_stop_signal(int signal);
  void report_progress();
  void show_status();
  // Sends this signal now, and SIGKILL after shutdown_timeout.
  void end_workers(int signal);
  // SIGKILL, to all or to one. If a worker has not ended kill_timeout later, this node is lost.
  void kill_workers();
  void kill_worker(int local_rank);
  void expect_end();
  void give_up();
  // On standard error, unless --quiet.
  void print(const std::string& line);
  void print_thread_count(int ranks);

  base::EventLoop& loop_;
  const RunOptions& options_;
  Keeper& keeper_;
  Consoles consoles_;
  SignalQueue signals_;
  LogFolder logs_;
  rlimit open_files_{};  // the limit before this launcher raises it
  Membership* membership_ = nullptr;
  base::Mutex store_port_mutex_;
  std::optional<StorePort> store_port_ LOCKSTEP_GUARDED_BY(store_port_mutex_);
  std::unique_ptr<WorkerGroup> workers_;
  bool stopping_ = false;  // between stop() and the report that the workers have stopped
  bool ending_ = false;    // the workers got a signal to end
  bool failure_reported_ = false;
  bool killed_ = false;         // at least one of the workers got SIGKILL
  std::optional<int> suspect_;  // by its exit code it failed because of another; not reported yet
  int stop_signal_ = 0;
  std::string unprinted_reason_;       // why the last generation stopped, if not printed yet
  base::EventLoop::Timer kill_timer_;  // of the workers' end: SIGTERM, then SIGKILL
  base::EventLoop::Timer cause_timer_;
  base::EventLoop::Timer progress_timer_;
  base::EventLoop::Timer stuck_timer_;
  base::EventLoop::Timer status_timer_;
  const base::EventLoop::Clock::time_point began_ = base::EventLoop::Clock::now();
  std::vector<std::unique_ptr<StackDump>> stacks_;
  std::optional<JobOutcome> outcome_;
  bool all_usage_errors_ = false;
};

std::vector<int> all_signals(const RunOptions& options) {
  std::vector<int> signals = options.stop_signals;
  signals.insert(signals.end(), options.notify_signals.begin(), options.notify_signals.end());
  return signals;
}

bool keeps_logs(const RunOptions& options) {
  if (options.log_dir == "/dev/null") return false;
  return options.redirects.any() || options.tee.any() || !options.stdout_filters.empty() ||
         !options.stderr_filters.empty();
}

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
  // Without a prefix, the workers' bytes pass unchanged and the terminal belongs to the program.
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

bool Agent::every_worker_had_usage_error() const {
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
  const base::MutexLock lock(store_port_mutex_);
  store_port_.reset();
  if (options_.inherit_store_socket) {
    store_port_ = StorePort::listening(options_.store_addr);
  } else {
    store_port_.emplace(options_.store_port);
  }
  return store_port_->number();
}

void Agent::start(const Generation& generation) {
  stopping_ = ending_ = failure_reported_ = killed_ = false;
  suspect_.reset();
  loop_.cancel(cause_timer_);
  loop_.cancel(stuck_timer_);
  workers_.reset();
  if (generation.number > 0) {
    print(fmt::format("[run] generation {}: {} on {}, restart {} of {}{}\n", generation.number,
                      count_of(generation.world_size(), "rank"),
                      count_of(static_cast<int>(generation.nodes.size()), "node"), generation.restart_count,
                      options_.max_restarts, unprinted_reason_.empty() ? "" : ": " + unprinted_reason_));
  } else {
    print_thread_count(generation.local_world_size());
  }
  unprinted_reason_.clear();
  int store_fd = -1;
  {
    const base::MutexLock lock(store_port_mutex_);
    if (store_port_) store_fd = store_port_->inherited_fd();
  }
  // Not locked while the workers start: a slow file system may delay that.
  workers_ = std::make_unique<WorkerGroup>(
      WorkerContext{loop_, keeper_, consoles_, logs_, options_, open_files_}, generation, store_fd,
      [this](int local_rank) { on_worker_exit(local_rank); });
  {
    const base::MutexLock lock(store_port_mutex_);
    if (store_port_) store_port_->release();
  }
  loop_.cancel(progress_timer_);
  if (options_.stall_timeout.count() > 0) report_progress();
}

// Four times within the timeout, so that a stall is reported soon after it.
void Agent::report_progress() {
  progress_timer_ = loop_.after(options_.stall_timeout / 4, [this] { report_progress(); });
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

void Agent::note(const std::string& text) { print(fmt::format("[run] {}\n", text)); }

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
  // After a signal to this launcher only one exit is worth a report: a worker that has saved.
  const bool saved = stop_signal_ != 0 && !state.signaled && state.code == kExitPreempted;
  if (!state.success() && !failure_reported_ && (!ending_ || saved)) {
    const bool is_consequence = !state.signaled && state.code == kExitCommunication;
    if (is_consequence) {
      await_cause(local_rank);
    } else {
      report_failure(local_rank);
    }
  }
  if (workers_->running() > 0) return;
  if (suspect_ && !failure_reported_) report_failure(*suspect_);
  loop_.cancel(kill_timer_);
  loop_.cancel(stuck_timer_);
  if (stopping_) {
    stopping_ = false;
    membership_->stopped(generation);
  } else if (!failure_reported_ && workers_->all_succeeded()) {
    membership_->succeeded(generation);
  }
  // Otherwise a signal to this launcher ended them, and the job's stop() will follow.
}

void Agent::await_cause(int local_rank) {
  if (suspect_) return;
  suspect_ = local_rank;
  cause_timer_ = loop_.after(kCauseGrace, [this] {
    if (!failure_reported_) report_failure(*suspect_);
  });
}

void Agent::report_failure(int local_rank) {
  loop_.cancel(cause_timer_);
  failure_reported_ = true;
  membership_->worker_failed(explain_failure(local_rank));
  // Does not wait for the job's stop(): no rank continues after a failure.
  if (options_.failure_grace.count() == 0) {
    end_workers(SIGTERM);
  } else if (!ending_) {
    kill_timer_ = loop_.after(options_.failure_grace, [this] { end_workers(SIGTERM); });
  }
}

// If the keeper killed the worker, the failure is the launcher's pause and not the worker's.
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
    unprinted_reason_ = reason;
    membership_->stopped(generation);
    return;
  }
  if (!reason.empty()) print(fmt::format("[run] stopping the workers: {}\n", reason));
  stopping_ = true;
  // After a failure on this node they are being ended already.
  if (!failure_reported_) end_workers(SIGTERM);
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
  // If only one worker was killed, the others still run.
  workers_->send_signal(SIGKILL);
  const std::string reason = workers_->give_up();
  consoles_.err.write(fmt::format("[{}] {}\n", options_.component, reason));
  membership_->stuck(workers_->generation().number, reason);
}

void Agent::finish(const JobOutcome& outcome) {
  outcome_ = outcome;
  all_usage_errors_ = every_worker_had_usage_error();
  // If workers still run, contact with the job was lost: they must not continue alone, and
  // resetting workers_ kills them.
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
    // The second signal: do not wait any longer.
    if (workers_) kill_workers();
    return;
  }
  stop_signal_ = signal;
  if (workers_ && workers_->running() > 0) end_workers(signal);
  membership_->leave(signal);
}

void Agent::print_thread_count(int ranks) {
  if (ranks == 1 || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  print(fmt::format("[run] OMP_NUM_THREADS={} for each of {} ranks here\n",
                    cluster::threads_of_this_process(base::Environment::of_process(), ranks), ranks));
}

void Agent::print(const std::string& line) {
  if (!options_.quiet) consoles_.err.write(line);
}

// --- the whole job ---

// Launchers may be nested, as torchrun's: passes the failure on to an outer launcher.
void write_failure(const JobFailure& failure) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  try {
    if (failure.error_file.empty()) {
      const std::string message =
          failure.kind == JobFailure::Kind::kNode ? failure.message : failure.state.to_string();
      write_error_file(path, {.message = message, .timestamp_s = failure.time_us / 1'000'000});
    } else {
      forward_error_file(path, failure.error_file,
                         failure.state.signaled ? -failure.state.code : failure.state.code);
    }
  } catch (const Error& error) {
    base::log_warning("run", "the error file was not written: {}", error.what());
  }
}

int report(const Agent& agent, const RunOptions& options, Console& err) {
  if (const std::string logs = agent.kept_logs(); !logs.empty() && !options.quiet) {
    err.write(fmt::format("[run] log files: {}\n", logs));
  }
  if (!agent.outcome()) return kExitInternal;
  // All ranks already printed this usage error.
  const bool printed = options.pass_streams && agent.all_usage_errors();
  const std::string outcome = printed ? "" : format_outcome(options.component, *agent.outcome());
  const size_t line = outcome.find('\n');
  err.write(err.is_decorated() && !outcome.empty()
                ? fmt::format("\x1b[1;31m{}\x1b[0m{}", outcome.substr(0, line), outcome.substr(line))
                : outcome);
  if (agent.outcome()->failure) write_failure(*agent.outcome()->failure);
  return agent.outcome()->status();
}

}  // namespace

int run_job(const RunOptions& options) {
  // A closed standard output is an error of write(2) and must not end the job.
  ::signal(SIGPIPE, SIG_IGN);
  Keeper keeper;
  base::EventLoop loop;
  StatusLine status;
  Console out(loop, STDOUT_FILENO, status), err(loop, STDERR_FILENO, status);
  Agent agent(loop, options, keeper, {out, err});
  const std::unique_ptr<Membership> membership = join_job(loop, options, agent, keeper);
  agent.join(*membership);
  loop.run();
  keep_status_despite_sigterm();
  return report(agent, options, err);
}

}  // namespace lockstep::launcher
