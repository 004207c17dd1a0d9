#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/environment.h"
#include "launcher/agent/worker_command.h"
#include "launcher/job.h"

namespace lockstep::launcher {

struct Streams {
  bool out = false;
  bool err = false;
};

// Which standard streams of which workers a flag selects, by local rank: the value of
// --redirects and --tee. "0" none, "1" stdout, "2" stderr, "3" both, or "rank:number,..." for
// some ranks, none for the others.
class StreamChoice {
 public:
  StreamChoice() = default;
  // Throws ConfigError for any other text; it names `flag`.
  static StreamChoice parse(const std::string& flag, const std::string& text);

  Streams of(int local_rank) const;
  bool any() const;
  // The highest rank that is named, or -1.
  int highest_rank() const { return by_rank_.empty() ? -1 : by_rank_.rbegin()->first; }

 private:
  Streams all_;
  std::map<int, Streams> by_rank_;
};

// How this launcher joins the other launchers of its job.
struct JoinOptions {
  enum class Kind {
    kAlone,   // one node: no rendezvous
    kStatic,  // every node knows its rank
    kOpen,    // nodes join and get a rank ("c10d")
  };
  Kind kind = Kind::kAlone;
  std::string host;                           // of node 0, as given
  std::string host_option = "--master-addr";  // the flag or variable that set it
  uint16_t port = 0;
  // Whether this launcher hosts the coordinator: given, or known by the node rank. Unset: the
  // launcher that has the address and gets the port hosts it.
  std::optional<bool> is_host;
  std::optional<int> node_rank;
  std::string token;
  std::chrono::milliseconds join_timeout{std::chrono::seconds(600)};
  std::chrono::milliseconds last_call_timeout{std::chrono::seconds(30)};
  // A launcher without a heartbeat for this long is lost. The host's value applies to all.
  std::chrono::milliseconds heartbeat_timeout{1500};
};

// What `lockstep run` has to do, with every value checked. A program that starts its own copies
// fills it in too (spawn_options()).
struct RunOptions {
  std::string print_completion;   // a shell: print its completion script instead of a run
  std::string component = "run";  // of messages about the job's end and stalls
  int min_nodes = 1;
  int max_nodes = 1;
  int local_world_size = 1;
  JoinOptions join;
  std::string run_id;
  std::string local_addr;
  // Of rank 0's store on one node; port 0: a free one. On several nodes always a free one.
  std::string store_addr = "127.0.0.1";
  uint16_t store_port = 0;
  // Rank 0 is a Lockstep program and inherits a listening socket, so that ranks that start
  // faster are not refused.
  bool inherit_store_socket = false;
  // How the ranks of several launchers that do not communicate get their common secret: rank 0
  // writes it to a key file of this name, or it is derived from LOCKSTEP_JOB_TOKEN. Otherwise the
  // launcher gives it to them.
  std::string key_name;
  bool passes_token = false;
  // The map of a job whose nodes know it without a rendezvous; number and restart_count are 0.
  // With a master_addr and no master_port, this node has all ranks and picks the port.
  std::optional<Generation> known_map;

  WorkerCommand command;
  std::string role;
  std::string numa_binding;
  bool virtual_local_rank = false;

  int max_restarts = 0;
  // From a failure to SIGTERM for the other ranks, which may notice it themselves and print their
  // own error.
  std::chrono::milliseconds failure_grace{0};
  std::chrono::milliseconds shutdown_timeout{0};
  // If a worker has not ended this long after SIGKILL, this node is lost.
  std::chrono::milliseconds kill_timeout{std::chrono::seconds(20)};
  std::chrono::milliseconds stall_timeout{0};  // 0: no stall detection
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
  // Sentences for the user: assumptions that are likely to be wrong.
  std::vector<std::string> hints;
};

// The machine's counts for the values "auto", "cpu" and "gpu" of --nproc-per-node.
struct MachineCounts {
  int cpus = 1;
  int gpus = 0;
};

// Reads flags and variables. ConfigError names the flag, its value and the remedy; a flag that
// would have no effect is refused. With --print-completion the other options are neither needed nor checked.
// Throws HelpRequested for --help.
RunOptions parse_run_options(const std::vector<std::string>& arguments, const base::Environment& environment,
                             const MachineCounts& machine);

}  // namespace lockstep::launcher
