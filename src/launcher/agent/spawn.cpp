#include <lockstep/error.h>
#include <signal.h>

#include <chrono>

#include "base/process.h"
#include "launcher/agent/run_job.h"
#include "launcher/signal_queue.h"

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

// Restores a signal's action: a program may continue after its ranks have ended.
class SavedAction {
 public:
  explicit SavedAction(int signal) : signal_(signal) { ::sigaction(signal_, nullptr, &action_); }
  void restore() const { ::sigaction(signal_, &action_, nullptr); }

 private:
  const int signal_;
  struct sigaction action_ {};
};

}  // namespace

RunOptions spawn_options(const cluster::SpawnPlan& plan) {
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

  // The progress of ranks on other nodes is not known here.
  if (plan.num_nodes == 1) options.stall_timeout = seconds(30);

  options.local_world_size = plan.local_world_size;
  options.known_map = map_of(plan);
  const Rendezvous& rendezvous = plan.rendezvous;
  if (plan.num_nodes > 1) {
    options.key_name = rendezvous.key_name;
    options.passes_token = rendezvous.secret == Rendezvous::Secret::kToken;
  }
  if (rendezvous.kind == Rendezvous::Kind::kTcp) {
    options.known_map->master_addr = rendezvous.address;
    options.known_map->master_port = rendezvous.port;
  } else if (rendezvous.kind == Rendezvous::Kind::kNone) {
    options.known_map->master_addr = options.store_addr;
    options.inherit_store_socket = true;
  }
  return options;
}

int spawn_ranks(const cluster::SpawnPlan& plan) {
  const SavedAction term(SIGTERM), pipe(SIGPIPE);
  const int status = run_job(spawn_options(plan));
  pipe.restore();
  if (status == kExitSuccess) term.restore();
  return status;
}

}  // namespace lockstep::launcher
