#include "launcher/agent/worker_group.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "base/folder.h"
#include "base/process.h"
#include "cluster/cpu_binding.h"
#include "cluster/node_resources.h"
#include "launcher/agent/keeper.h"
#include "launcher/agent/worker_command.h"
#include "launcher/error_file.h"

namespace lockstep::launcher {

int64_t count_memory_kills(const std::string& vmstat) {
  std::ifstream file(vmstat);
  std::string name;
  for (int64_t value = 0; file >> name >> value;) {
    if (name == "oom_kill") return value;
  }
  return 0;
}

namespace {

// For kernels without pidfd.
constexpr std::chrono::milliseconds kPollPeriod{20};
constexpr std::streamoff kTailBytes = 1 << 16;

// Adjacent ranks differ, and none is red, the colour of failures.
const char* colour_of(int rank) {
  static constexpr std::array kColours{"36", "32", "33", "35", "34", "96", "92", "93", "95", "94"};
  return kColours[static_cast<size_t>(rank) % kColours.size()];
}

base::UniqueFd open_null() { return base::UniqueFd(::open("/dev/null", O_WRONLY | O_CLOEXEC)); }

std::vector<std::string> tail_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTailBytes));
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > WorkerStream::kKeptLines) lines.pop_front();
  }
  return {lines.begin(), lines.end()};
}

std::vector<std::vector<int>> bound_cpus(const RunOptions& options, int local_world_size,
                                         const base::Environment& environment) {
  if (options.numa_binding.empty()) return {};
  const std::vector<cluster::LogicalCpu> topology = cluster::read_cpu_topology(cluster::affinity_cpus());
  return cluster::bind_ranks(
      cluster::parse_cpu_binding(options.numa_binding), topology,
      cluster::numa_nodes_of_ranks(local_world_size, cluster::gpu_numa_nodes(environment), topology));
}

// An unnamed file that holds the secret of the ranks.
base::UniqueFd write_key(const std::string& key) {
  base::UniqueFd fd(::memfd_create("lockstep-key", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::write(fd.get(), key.data(), key.size()) != static_cast<ssize_t>(key.size())) {
    throw ConfigError("run",
                      fmt::format("cannot hand the ranks their secret: memfd: {}", std::strerror(errno)));
  }
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

// 'D', 'R', ..., or '?'.
char state_of(const std::filesystem::path& thread) {
  return base::process_state(thread).value_or(base::ProcessState{}).state;
}

// ", in state D in nfs_wait_on_request", as far as the kernel shows it: of a thread that cannot
// be killed if there is one, which need not be the main thread.
std::string describe_wait(pid_t pid) {
  std::filesystem::path thread = fmt::format("/proc/{}", pid);
  char state = state_of(thread);
  std::error_code ignored;
  for (const base::FolderEntry& entry : base::list_folder(thread / "task", ignored)) {
    if (state_of(entry.path()) != 'D') continue;
    thread = entry.path();
    state = 'D';
    break;
  }
  std::string text = fmt::format(", in state {}", state);
  std::ifstream place(thread / "wchan");
  if (std::string name; std::getline(place, name) && name.size() > 1) text += " in " + name;
  return text;
}

int64_t now_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

WorkerGroup::WorkerGroup(const WorkerContext& context, const Generation& generation, int store_fd,
                         OnExit on_exit)
    : loop_(context.loop),
      keeper_(context.keeper),
      consoles_(context.consoles),
      logs_(context.logs),
      options_(context.options),
      open_files_(context.open_files),
      generation_(generation),
      on_exit_(std::move(on_exit)),
      environment_(base::Environment::of_process()),
      memory_kills_before_(count_memory_kills()),
      cpus_(bound_cpus(options_, generation_.local_world_size(), environment_)),
      mark_("TORCHELASTIC_ERROR_FILE=" + logs_.attempt(generation_.number).string() + "/") {
  if (options_.key_name.empty() && !options_.passes_token) key_ = write_key(generation_.secret);
  keeper_.begin(mark_);
  logs_.make_attempt(generation_.number, generation_.local_world_size());
  for (int local_rank = 0; local_rank < generation_.local_world_size(); ++local_rank) {
    start(local_rank, store_fd);
  }
  for (int local_rank = 0; local_rank < generation_.local_world_size(); ++local_rank) {
    watch_exec(local_rank);
    watch(local_rank);
  }
}

WorkerGroup::~WorkerGroup() {
  const std::vector<Worker*> left = unfinished();
  for (const Worker* worker : left) {
    if (worker->process->exit_fd() >= 0) loop_.forget(worker->process->exit_fd());
    if (worker->process->exec_fd() >= 0) loop_.forget(worker->process->exec_fd());
    worker->process->send_signal(SIGKILL);
  }
  const auto limit = given_up_ ? std::chrono::milliseconds(0) : options_.kill_timeout;
  const auto deadline = base::EventLoop::Clock::now() + limit;
  std::set<pid_t> stuck;
  for (const Worker* worker : left) {
    const pid_t pid = worker->process->pid();
    if (worker->process->end_by(deadline)) {
      keeper_.release(pid);
    } else {
      stuck.insert(pid);
    }
  }
  if (running_ > 0) kill_leftovers(mark_, stuck);
}

std::vector<WorkerGroup::Worker*> WorkerGroup::unfinished() const {
  std::vector<Worker*> left;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (worker->process && !worker->process->ended()) left.push_back(worker.get());
  }
  return left;
}

std::string WorkerGroup::give_up() {
  given_up_ = true;
  std::string text;
  for (const Worker* worker : unfinished()) {
    const pid_t pid = worker->process->pid();
    text += fmt::format("{}rank {} (pid {}{})", text.empty() ? "" : ", ",
                        generation_.first_rank() + worker->local_rank, pid, describe_wait(pid));
  }
  return fmt::format(
      "{} did not end within {:.3g} s after SIGKILL; a process that waits for a disk, a "
      "network file system or a driver cannot be killed",
      text, std::chrono::duration<double>(options_.kill_timeout).count());
}

WorkerGroup::Connection WorkerGroup::connect(int local_rank, bool is_out) {
  if (options_.pass_streams) return {};
  const auto wants = [&](const StreamChoice& choice) {
    const Streams streams = choice.of(local_rank);
    return is_out ? streams.out : streams.err;
  };
  const char* name = is_out ? "stdout.log" : "stderr.log";
  const std::string path = logs_.worker(generation_.number, local_rank) / name;
  Connection connection;
  const bool teed = wants(options_.tee);
  if (wants(options_.redirects) && !teed) {
    connection.file = open_log_file(path, O_TRUNC);
    connection.path = path;
    return connection;
  }
  StreamSinks sinks;
  if (!options_.shown_ranks || options_.shown_ranks->contains(local_rank)) {
    sinks.console = is_out ? &consoles_.out : &consoles_.err;
  }
  sinks.prefix = line_prefix(options_, generation_, local_rank);
  sinks.colour = colour_of(generation_.first_rank() + local_rank);
  if (teed) sinks.file = path;
  sinks.filters = is_out ? options_.stdout_filters : options_.stderr_filters;
  sinks.filtered_file = logs_.attempt(generation_.number) / (std::string("filtered_") + name);
  // The last lines of standard error are kept in any case.
  if (is_out && sinks.console == nullptr && sinks.file.empty() && sinks.filters.empty()) {
    connection.file = open_null();
  } else {
    connection.stream = std::make_unique<WorkerStream>(loop_, std::move(sinks));
  }
  return connection;
}

void WorkerGroup::start(int local_rank, int store_fd) {
  workers_.push_back(std::make_unique<Worker>());
  Worker& worker = *workers_.back();
  worker.local_rank = local_rank;
  worker.error_file = logs_.worker(generation_.number, local_rank) / "error.json";
  base::ProcessOptions process;
  process.program = options_.command.program;
  process.arguments = options_.command.arguments;
  process.environment =
      worker_environment(environment_, options_, generation_, local_rank, worker.error_file);

  process.environment.set("LOCKSTEP_PROGRESS_FD", std::to_string(worker.progress.fd()));
  process.inherited_fds = {worker.progress.fd()};
  if (key_) {
    process.environment.set("LOCKSTEP_KEY_FD", std::to_string(key_.get()));
    process.environment.set("LOCKSTEP_KEY_PID", std::to_string(::getpid()));
    process.inherited_fds.push_back(key_.get());
  }
  if (store_fd >= 0 && generation_.first_rank() + local_rank == 0) {
    process.environment.set("LOCKSTEP_STORE_FD", std::to_string(store_fd));
    process.inherited_fds.push_back(store_fd);
  }
  process.open_files = open_files_;
  if (!cpus_.empty()) process.cpus = cpus_[static_cast<size_t>(local_rank)];

  Connection out = connect(local_rank, /*is_out=*/true), err = connect(local_rank, /*is_out=*/false);
  process.stdout_fd = out.fd();
  process.stderr_fd = err.fd();
  worker.out = std::move(out.stream);
  worker.err = std::move(err.stream);
  worker.err_file = err.path;

  process.before_exec = [this](pid_t pid) { keeper_.guard(pid); };
  worker.process = std::make_unique<base::ChildProcess>(base::ChildProcess::begin(process));
  ++running_;
  if (worker.out) worker.out->release_worker_fd();
  if (worker.err) worker.err->release_worker_fd();
}

void WorkerGroup::watch_exec(int local_rank) {
  base::ChildProcess& process = *workers_[local_rank]->process;
  loop_.watch(process.exec_fd(), EPOLLIN, [this, &process](uint32_t) {
    loop_.forget(process.exec_fd());
    process.confirm_exec();
  });
}

void WorkerGroup::watch(int local_rank) {
  const int fd = workers_[local_rank]->process->exit_fd();
  if (fd >= 0) {
    loop_.watch(fd, EPOLLIN, [this, local_rank](uint32_t) { on_exit_event(local_rank); });
  } else {
    loop_.after(kPollPeriod, [this, local_rank] {
      on_exit_event(local_rank);
      if (!ended(local_rank)) watch(local_rank);
    });
  }
}

void WorkerGroup::on_exit_event(int local_rank) {
  Worker& worker = *workers_[local_rank];
  if (worker.process->ended() || !worker.process->poll_exit()) return;
  if (worker.process->exec_fd() >= 0) {
    loop_.forget(worker.process->exec_fd());
    worker.process->confirm_exec();
  }
  keeper_.release(worker.process->pid());
  if (worker.process->exit_fd() >= 0) loop_.forget(worker.process->exit_fd());
  if (worker.out) worker.out->finish();
  if (worker.err) worker.err->finish();
  if (--running_ == 0) kill_leftovers(mark_);
  on_exit_(local_rank);
}

bool WorkerGroup::all_succeeded() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const std::unique_ptr<Worker>& worker) {
    return worker->process->ended() && worker->process->exit_state().success();
  });
}

void WorkerGroup::send_signal(int signal) {
  for (const std::unique_ptr<Worker>& worker : workers_) worker->process->send_signal(signal);
}

void WorkerGroup::notify(int signal) {
  for (const std::unique_ptr<Worker>& worker : workers_) worker->process->notify(signal);
}

std::optional<JobStatus::Steps> WorkerGroup::steps() const {
  std::optional<JobStatus::Steps> steps;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    const base::ProgressWatch::Snapshot progress = worker->progress.look();
    if (!progress.reports || progress.step < 0) continue;
    if (!steps) steps = {progress.step, progress.step};
    steps->least = std::min(steps->least, progress.step);
    steps->most = std::max(steps->most, progress.step);
  }
  return steps;
}

JobFailure WorkerGroup::failure_of(int local_rank) const {
  const Worker& worker = *workers_[local_rank];
  JobFailure failure;
  failure.generation = generation_.number;
  failure.node_rank = generation_.node_rank;
  failure.host = generation_.nodes[generation_.node_rank].host;
  failure.time_us = now_us();
  failure.rank = generation_.first_rank() + local_rank;
  failure.local_rank = local_rank;
  failure.pid = worker.process->pid();
  failure.state = worker.process->exit_state();
  failure.out_of_memory =
      failure.state.signaled && failure.state.code == SIGKILL && count_memory_kills() > memory_kills_before_;
  if (const std::optional<WorkerError> error = read_error_file(worker.error_file)) {
    failure.message = error->callstack.empty() ? error->message : error->callstack;
    failure.error_file = error->text;
  }
  if (worker.err) {
    failure.last_lines.assign(worker.err->last_lines().begin(), worker.err->last_lines().end());
  } else if (!worker.err_file.empty()) {
    failure.last_lines = tail_of(worker.err_file);
  }
  return failure;
}

}  // namespace lockstep::launcher
