#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"

namespace lockstep::launcher {

// What a launcher says of itself when it joins a job.
struct NodeInfo {
  // Given by the user or by Slurm; else the coordinator gives one, in order of arrival.
  std::optional<int> node_rank;
  std::string host;     // this machine's name, for people
  std::string address;  // where the others reach it; "": as the coordinator sees it
  int local_world_size = 1;
  int64_t pid = 0;
  std::string role = "default";  // of its workers; nodes may have different ones
  // From being told to stop to the moment when none of its workers runs any more or it says that
  // they do not end; a launcher that takes longer is lost. 0: it may take any time.
  std::chrono::milliseconds stop_timeout{0};
};

// One life of the job's workers. Every start of workers is a new generation, on all
// nodes at once; no two generations run at the same time.
struct Generation {
  int number = 0;         // 0, 1, 2, ...
  int restart_count = 0;  // failures survived so far, of the whole job
  int node_rank = 0;      // of the launcher that this is told to
  std::vector<NodeInfo> nodes;
  // Where rank 0's store listens: reserved on node 0 for this generation. "": the ranks
  // meet elsewhere.
  std::string master_addr;
  uint16_t master_port = 0;
  // By which the ranks of this life know each other; made anew for each.
  std::string secret;

  int world_size() const;
  int first_rank() const;  // of this node
  int local_world_size() const { return nodes[node_rank].local_world_size; }
  // The same among the workers of this node's role.
  int role_world_size() const;
  int role_first_rank() const;
};

// Why a generation ended badly: one worker that failed, or one node that was lost.
struct JobFailure {
  enum class Kind { kWorker, kNode };
  Kind kind = Kind::kWorker;
  int generation = 0;
  int node_rank = 0;
  std::string host;
  // Since the epoch, by the clock of the coordinator's machine: failures of several nodes
  // can be put in order. What a node has seen it tells so, from its estimate of that
  // clock.
  int64_t time_us = 0;
  // kNode: what happened to it. kWorker: the message of its error file, or "".
  std::string message;
  std::string error_file;  // kWorker: the whole text of that file where it is JSON, or ""

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
    kNodeLost,          // and too few were left, or no restart
    kStopped,           // by a signal to one of the launchers
    kPreempted,         // a worker left with the preemption status
    kRendezvousFailed,  // too few nodes came, wrong token, unreachable, contradiction
  };
  Kind kind = Kind::kSuccess;
  std::string reason;                 // a sentence, "" for success
  int signal = 0;                     // kStopped
  std::optional<JobFailure> failure;  // the first one of the last generation
  int restart_count = 0;

  // What the launcher exits with: 0, the failing worker's code or 128 + its signal,
  // 128 + signal, or one of exit_status.h.
  int status() const;
};

}  // namespace lockstep::launcher
