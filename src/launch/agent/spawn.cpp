#include "launch/agent/spawn.h"

#include <lockstep/exit_status.h>
#include <signal.h>

#include <chrono>

#include "base/process.h"
#include "launch/agent/run_job.h"
#include "launch/signal_queue.h"

namespace lockstep::launcher {
namespace {

using std::chrono::seconds;

Generation map_of(const cluster::SpawnPlan& plan) {
  Generation map;
  map.node_rank = plan.node_rank;
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    NodeInfo node;
    node.node_rank = static_cast<int>(i);
    node.host = plan.nodes[i];
    node.local_world_size = plan.ranks_per_node[i];
    map.nodes.push_back(node);
  }
  return map;
}

// A program may go on after its ranks have ended, with its signals as they were.
class KeptAction {
 public:
  explicit KeptAction(int signal) : signal_(signal) { ::sigaction(signal_, nullptr, &action_); }
  void restore() const { ::sigaction(signal_, &action_, nullptr); }

 private:
  const int signal_;
  struct sigaction action_ {};
};

}  // namespace

RunOptions options_of(const cluster::SpawnPlan& plan) {
  RunOptions options;
  options.component = "launch";
  options.quiet = true;
  options.pass_streams = true;
  options.command = {base::own_executable(), base::own_arguments()};
  options.role = "default";
  options.run_id = plan.job_id.empty() ? "none" : plan.job_id;
  options.failure_grace = seconds(2);
  options.shutdown_timeout = seconds(30);
  options.stop_signals = stop_signals();
  options.notify_signals = default_notify_signals();

  // Of ranks on other nodes nothing is known here.
  if (plan.num_nodes == 1) options.stall_timeout = seconds(30);

  options.local_world_size = plan.local_world_size;
  options.known_map = map_of(plan);
  const Rendezvous& meeting = plan.rendezvous;
  if (plan.num_nodes > 1) {
    options.key_name = meeting.key_name;
    options.passes_token = meeting.secret == Rendezvous::Secret::kToken;
  }
  if (meeting.kind == Rendezvous::Kind::kTcp) {
    options.known_map->master_addr = meeting.address;
    options.known_map->master_port = meeting.port;
  } else if (meeting.kind == Rendezvous::Kind::kNone) {
    options.known_map->master_addr = options.store_addr;
    options.hand_store_over = true;
  }
  return options;
}

int spawn_ranks(const cluster::SpawnPlan& plan) {
  const KeptAction term(SIGTERM), pipe(SIGPIPE);
  const int status = run_job(options_of(plan));
  pipe.restore();
  if (status == kExitSuccess) term.restore();
  return status;
}

}  // namespace lockstep::launcher
