#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"
#include "base/event_loop.h"
#include "base/process.h"
#include "base/progress.h"
#include "launcher/agent/keeper.h"
#include "launcher/agent/log_folder.h"
#include "launcher/agent/run_options.h"
#include "launcher/agent/worker_output.h"
#include "launcher/job.h"

namespace lockstep::launcher {

// How many processes the kernel has killed for lack of memory since it booted; 0 if it does not
// report that. A worker that ended by SIGKILL while the number grew was most likely one of them.
int64_t count_memory_kills(const std::string& vmstat = "/proc/vmstat");

// Where workers' lines are printed.
struct Consoles {
  Console& out;
  Console& err;
};

// What every generation of workers on this node uses; all of it outlives them.
struct WorkerContext {
  base::EventLoop& loop;
  Keeper& keeper;
  Consoles consoles;
  LogFolder& logs;
  const RunOptions& options;
  // The limit of open files that the launcher was started with. Its workers get it too, although
  // the launcher may have raised its own.
  rlimit open_files;
};

// The workers of this node in one generation: starts them together, watches and signals them, and
// keeps their exit states until the next generation replaces them.
class WorkerGroup {
 public:
  // Called once for each worker that ended, from the loop, after its output was read.
  using OnExit = std::function<void(int local_rank)>;

  // Starts them. store_fd: a socket that rank 0 inherits, or -1. Throws ConfigError if one cannot
  // be started; the others are killed then. The loop's run() throws it if the program cannot be
  // executed: that is known only when its file system has answered.
  WorkerGroup(const WorkerContext& context, const Generation& generation, int store_fd, OnExit on_exit);
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;
  // Kills those that still run and waits until they have ended: at most kill_timeout, and not at
  // all after give_up().
  ~WorkerGroup();

  const Generation& generation() const { return generation_; }
  // To every worker that still runs and the processes that it started.
  void send_signal(int signal);
  // To every worker only: the processes that it started may not handle the signal.
  void notify(int signal);
  size_t running() const { return running_; }
  // For workers that were killed and do not end: returns a sentence that names them with their
  // kernel state.
  std::string give_up();
  // Whether all have ended, and well.
  bool all_succeeded() const;
  bool ended(int local_rank) const { return workers_[local_rank]->process->ended(); }
  const base::ExitState& exit_state(int local_rank) const {
    return workers_[local_rank]->process->exit_state();
  }
  pid_t pid(int local_rank) const { return workers_[local_rank]->process->pid(); }
  // What the worker reports that it is doing.
  base::ProgressWatch::Snapshot progress(int local_rank) const {
    return workers_[local_rank]->progress.look();
  }
  // The current steps of this node's workers, if they report them.
  std::optional<JobStatus::Steps> steps() const;
  // What is known about a worker that failed.
  JobFailure failure_of(int local_rank) const;

 private:
  struct Worker {
    std::unique_ptr<WorkerStream> out, err;  // nullptr: it writes to a file or to our own stream
    std::unique_ptr<base::ChildProcess> process;
    int local_rank = 0;
    std::string error_file;
    std::string err_file;  // where stderr is redirected to, or ""
    base::ProgressWatch progress;
  };

  void start(int local_rank, int store_fd);
  // The target of one standard stream of a worker: one of the two, or neither (our own stream).
  struct Connection {
    std::unique_ptr<WorkerStream> stream;
    base::UniqueFd file;
    std::string path;  // of the file, if it is a log

    int fd() const { return stream ? stream->worker_fd() : file.get(); }
  };
  Connection connect(int local_rank, bool is_out);
  void on_exit_event(int local_rank);
  void watch(int local_rank);
  void watch_exec(int local_rank);
  // Those that have not ended.
  std::vector<Worker*> unfinished() const;

  base::EventLoop& loop_;
  Keeper& keeper_;
  Consoles consoles_;
  LogFolder& logs_;
  const RunOptions& options_;
  const rlimit open_files_;
  const Generation generation_;
  const OnExit on_exit_;
  const base::Environment environment_;
  const int64_t memory_kills_before_;
  // By local rank; empty: not bound.
  const std::vector<std::vector<int>> cpus_;
  // An entry in the environment of each of these workers and of the processes that they start.
  const std::string mark_;
  base::UniqueFd key_;  // the secret that the workers inherit
  std::vector<std::unique_ptr<Worker>> workers_;
  size_t running_ = 0;
  bool given_up_ = false;
};

}  // namespace lockstep::launcher
