#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/environment.h"
#include "base/event_loop.h"
#include "base/process.h"
#include "base/progress.h"
#include "launch/agent/console.h"
#include "launch/agent/keeper.h"
#include "launch/agent/log_folder.h"
#include "launch/agent/run_options.h"
#include "launch/agent/status_line.h"
#include "launch/agent/worker_stream.h"
#include "launch/job.h"

namespace lockstep::launcher {

// Where workers' lines are shown.
struct Consoles {
  Console& out;
  Console& err;
};

// What every generation of workers on this node uses; all of it outlives them.
struct Workplace {
  base::EventLoop& loop;
  Keeper& keeper;
  Consoles consoles;
  LogFolder& logs;
  const RunOptions& options;
  // The limit of open files that the launcher was started with, and its workers are too: it may
  // have raised its own.
  rlimit open_files;
};

// The workers of this node in one generation: started together, watched, signalled
// and remembered until the next generation takes their place.
class WorkerGroup {
 public:
  // Calls on_exit once for each worker, from the loop, after its output was taken.
  using OnExit = std::function<void(int local_rank)>;

  // Starts them. store_fd: a socket that rank 0 inherits, or -1. Throws ConfigError when
  // one cannot be started; those that were are killed then. The loop's run() throws it where
  // the program cannot be executed: that is known when its file system has answered.
  WorkerGroup(const Workplace& workplace, const Generation& generation, int store_fd, OnExit on_exit);
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;
  // Kills those that still run, and waits for their end: at most kill_timeout, and not after
  // give_up().
  ~WorkerGroup();

  const Generation& generation() const { return generation_; }
  // To every worker that still runs, and to what it has started.
  void send_signal(int signal);
  // To every worker itself, not to what it has started: those know nothing of it.
  void notify(int signal);
  size_t running() const { return running_; }
  // They were killed and do not end: who they are, and what the kernel says of them.
  std::string give_up();
  // Whether all have ended, and well.
  bool all_succeeded() const;
  bool ended(int local_rank) const { return workers_[local_rank]->process->ended(); }
  const base::ExitState& exit_state(int local_rank) const {
    return workers_[local_rank]->process->exit_state();
  }
  pid_t pid(int local_rank) const { return workers_[local_rank]->process->pid(); }
  // What the worker says it is doing.
  base::ProgressWatch::Snapshot progress(int local_rank) const {
    return workers_[local_rank]->progress.look();
  }
  // The steps that this node's workers are at, where they tell.
  std::optional<JobStatus::Steps> steps() const;
  // What is known of a worker that has ended badly.
  JobFailure failure_of(int local_rank) const;

 private:
  struct Worker {
    std::unique_ptr<WorkerStream> out, err;  // nullptr: written to a file, or passed on as it is
    std::unique_ptr<base::ChildProcess> process;
    int local_rank = 0;
    std::string error_file;
    std::string err_file;  // where stderr is redirected to, or ""
    base::ProgressWatch progress;
  };

  void start(int local_rank, int store_fd);
  // What one standard stream of a worker goes to: one of the two, or neither (our own).
  struct Connection {
    std::unique_ptr<WorkerStream> stream;
    base::UniqueFd file;
    std::string path;  // of the file, where it is a log

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
  // What the environment of each of these workers, and of what it starts, holds.
  const std::string mark_;
  base::UniqueFd key_;  // what the workers inherit
  std::vector<std::unique_ptr<Worker>> workers_;
  size_t running_ = 0;
  bool given_up_ = false;
};

}  // namespace lockstep::launcher
