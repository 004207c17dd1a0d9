#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/process.h"

namespace lockstep::launcher {

// How a launcher describes its node when it joins a job.
struct NodeInfo {
  // Given by the user or by Slurm; else the coordinator assigns one, in order of arrival.
  std::optional<int> node_rank;
  std::string host;     // this machine's name, for messages
  std::string address;  // where the others reach it; "": the address that the coordinator sees
  int local_world_size = 1;
  int64_t pid = 0;
  std::string role = "default";  // of its workers; nodes may have different ones
  // From Stop until all its workers have ended or are reported as stuck; a launcher that takes
  // longer is lost. 0: no limit.
  std::chrono::milliseconds stop_timeout{0};
};

// One start of the job's workers. Every start is a new generation, on all nodes at once; no two
// generations run at the same time.
struct Generation {
  int number = 0;         // 0, 1, 2, ...
  int restart_count = 0;  // failures survived so far, of the whole job
  int node_rank = 0;      // of the launcher that receives this
  std::vector<NodeInfo> nodes;
  // Where rank 0's store listens: reserved on node 0 for this generation. "": the ranks use
  // another rendezvous, such as a file.
  std::string master_addr;
  uint16_t master_port = 0;
  // By which the ranks of this generation recognise each other; every generation has a new one.
  std::string secret;

  int world_size() const;
  int first_rank() const;  // of this node
  int local_world_size() const { return nodes[node_rank].local_world_size; }
  // The same, counting only workers of this node's role.
  int role_world_size() const;
  int role_first_rank() const;
};

// Why a generation failed: one worker that failed, or one node that was lost.
struct JobFailure {
  enum class Kind { kWorker, kNode };
  Kind kind = Kind::kWorker;
  int generation = 0;
  int node_rank = 0;
  std::string host;
  // Since the epoch, by the clock of the coordinator's machine, so that failures of several nodes
  // can be put in order. A node converts its own times by its estimate of that clock.
  int64_t time_us = 0;
  // kNode: what happened to it. kWorker: the message of its error file, or "".
  std::string message;
  std::string error_file;  // kWorker: the whole text of that file if it is valid, or ""

  // kWorker only.
  int rank = 0;
  int local_rank = 0;
  int64_t pid = 0;
  base::ExitState state;
  bool out_of_memory = false;           // killed by the kernel for memory
  std::vector<std::string> last_lines;  // of its standard error
};

// How the whole job ended; the same on every node.
struct JobOutcome {
  enum class Kind {
    kSuccess,
    kWorkerFailed,      // and no restart was left
    kNodeLost,          // and too few nodes were left, or no restart
    kStopped,           // by a signal to one of the launchers
    kPreempted,         // a worker exited with the preemption status
    kRendezvousFailed,  // too few nodes joined, wrong token, unreachable, contradicting flags
  };
  Kind kind = Kind::kSuccess;
  std::string reason;                 // a sentence, "" for success
  int signal = 0;                     // kStopped
  std::optional<JobFailure> failure;  // the first one of the last generation
  int restart_count = 0;

  // The launcher's exit status: 0, the failing worker's code or 128 + its signal, 128 + signal,
  // or one of the constants of lockstep/error.h.
  int status() const;
};

// Whether a worker was asked to stop, has saved its state and wants to be started again.
bool is_preempted(const JobFailure& failure);

// "rank 3 on gpu07 ended with exit code 1", "node 1 (gpu07) is lost: ...".
std::string describe(const JobFailure& failure);

JobOutcome outcome_of(JobOutcome::Kind kind, std::string reason, int restart_count = 0, int signal = 0);

std::string signal_name(int signal);  // "SIGTERM"
// "1 node", "2 nodes"
std::string count_of(int number, std::string_view noun);

// The end of a job for the user: what failed first, where, how, and the last lines of its
// standard error. "" for success. Several lines, each with its newline, the first with
// "[component] " before it.
std::string format_outcome(const std::string& component, const JobOutcome& outcome);

}  // namespace lockstep::launcher
