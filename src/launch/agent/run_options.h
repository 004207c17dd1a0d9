#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/environment.h"
#include "launch/agent/stream_choice.h"
#include "launch/agent/worker_command.h"
#include "launch/job.h"

namespace lockstep::launcher {

// How and where the launchers of a job meet.
struct MeetingOptions {
  enum class Kind {
    kAlone,   // one node: nobody to meet
    kStatic,  // every node knows its rank
    kOpen,    // nodes come and get a rank ("c10d")
  };
  Kind kind = Kind::kAlone;
  std::string host;                           // of node 0, as given
  std::string host_option = "--master-addr";  // how it was given
  uint16_t port = 0;
  // Whether this launcher hosts the meeting: given, or known by the node rank; unset:
  // whoever has the address and gets the port.
  std::optional<bool> is_host;
  std::optional<int> node_rank;
  std::string token;
  std::chrono::milliseconds join_timeout{std::chrono::seconds(600)};
  std::chrono::milliseconds last_call_timeout{std::chrono::seconds(30)};
  // A launcher that was not heard for so long is lost; the one that hosts the meeting decides.
  std::chrono::milliseconds heartbeat_timeout{1500};
};

// What `lockstep run` does, decided: every value checked, nothing left to guess. A program
// that starts its own copies fills it in too (spawn.h).
struct RunOptions {
  std::string component = "run";  // who speaks of the end and of hangs
  int min_nodes = 1;
  int max_nodes = 1;
  int local_world_size = 1;
  MeetingOptions meeting;
  std::string run_id;
  std::string local_addr;
  // Of rank 0's store on one node; 0: a free port. On several nodes always a free one.
  std::string store_addr = "127.0.0.1";
  uint16_t store_port = 0;
  // Rank 0 is a Lockstep program and gets a socket that listens already, so that ranks
  // faster than it are not refused.
  bool hand_store_over = false;
  // How the ranks of several launchers that do not meet get the secret by which they know each
  // other: rank 0 writes it to a file of this name, or it is made of LOCKSTEP_JOB_TOKEN. Else the
  // launcher gives it to them.
  std::string key_name;
  bool passes_token = false;
  // The map of a job whose nodes need not meet to know it; number and restart_count are 0.
  // With a master_addr and no master_port this node has all ranks and picks the port.
  std::optional<Generation> known_map;

  WorkerCommand command;
  std::string role;
  std::string numa_binding;
  bool virtual_local_rank = false;

  int max_restarts = 0;
  // From a failure to SIGTERM: the others may notice it themselves and say so.
  std::chrono::milliseconds failure_grace{0};
  std::chrono::milliseconds shutdown_timeout{0};
  // From SIGKILL to the moment when a worker that has not ended makes this node a lost one.
  std::chrono::milliseconds kill_timeout{std::chrono::seconds(20)};
  std::chrono::milliseconds stall_timeout{0};  // 0: nobody looks
  enum class OnStall { kReport, kRestart, kAbort };
  OnStall on_stall = OnStall::kReport;
  std::vector<int> stop_signals;
  std::vector<int> notify_signals;

  bool pass_streams = false;  // workers write to our own standard output and error
  std::string log_dir;
  StreamChoice redirects;
  StreamChoice tee;
  std::optional<std::set<int>> shown_ranks;  // local ranks; nullopt: all
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
  std::string prefix_template;  // "": none
  bool quiet = false;
  // Sentences for the user: what was assumed and is likely to be wrong.
  std::vector<std::string> hints;
};

// Facts of the machine that decide "auto", "cpu" and "gpu".
struct MachineCounts {
  int cpus = 1;
  int gpus = 0;
};

// Reads flags and variables. ConfigError names the flag, its value and what to do;
// a flag that would have no effect is refused. HelpRequested: --help and
// --print-completion.
RunOptions parse_run_options(const std::vector<std::string>& arguments, const base::Environment& environment,
                             const MachineCounts& machine);

}  // namespace lockstep::launcher
