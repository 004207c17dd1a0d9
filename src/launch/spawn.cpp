#include "launch/spawn.h"

#include <lockstep/exit_status.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/listen_socket.h"
#include "base/log.h"
#include "base/process.h"
#include "cluster/topology.h"

namespace lockstep::launcher {
namespace {

constexpr char kLoopback[] = "127.0.0.1";

// The environment of one rank: ours, plus who it is, plus a fair share of the cores.
base::Environment worker_environment(const cluster::SpawnPlan& plan, int local_rank, int store_fd) {
  base::Environment environment = base::Environment::of_process();
  const base::Environment rank = cluster::environment_of_rank(plan, local_rank);
  for (const auto& [name, value] : rank.values()) environment.set(name, value);
  if (plan.first_rank + local_rank == 0 && store_fd >= 0) {
    environment.set("LOCKSTEP_STORE_FD", std::to_string(store_fd));
  }
  if (!environment.has("OMP_NUM_THREADS")) {
    environment.set("OMP_NUM_THREADS",
                    std::to_string(cluster::threads_of_this_process(environment, plan.local_world_size)));
  }
  return environment;
}

// Ranks that agree that what they were given is wrong have said so, once.
bool all_refused(const std::vector<base::ChildProcess>& workers) {
  return std::all_of(workers.begin(), workers.end(), [](const base::ChildProcess& worker) {
    return !worker.exit_state().signaled && worker.exit_state().code == kExitUsage;
  });
}

void report(const cluster::SpawnPlan& plan, const SupervisorOutcome& outcome,
            const std::vector<base::ChildProcess>& workers) {
  if (!outcome.first_failure || all_refused(workers)) return;
  const Failure& failure = *outcome.first_failure;
  base::log_error("launch", "rank {} failed first: {}, pid {}", plan.first_rank + failure.worker,
                  failure.state.to_string(), failure.pid);
}

}  // namespace

int spawn_ranks(cluster::SpawnPlan plan, const SupervisorOptions& options) {
  base::ListenSocket store;
  if (plan.rendezvous.kind == Rendezvous::Kind::kNone) {
    store = base::listen_on_free_port(kLoopback);
    plan.rendezvous.kind = Rendezvous::Kind::kTcp;
    plan.rendezvous.address = kLoopback;
    plan.rendezvous.port = store.port;
  }
  base::ProcessOptions process;
  process.program = base::own_executable();
  process.arguments = base::own_arguments();
  std::vector<base::ChildProcess> workers;
  for (int local_rank = 0; local_rank < plan.local_world_size; ++local_rank) {
    const bool hosts_store = store.fd && plan.first_rank + local_rank == 0;
    process.environment = worker_environment(plan, local_rank, store.fd.get());
    process.inherited_fds.clear();
    if (hosts_store) process.inherited_fds.push_back(store.fd.get());
    workers.push_back(base::ChildProcess::start(process));
  }
  // Rank 0 has it now: were we to keep it open, a client of a dead rank 0 would
  // wait in our queue instead of being refused.
  store.fd.reset();
  const SupervisorOutcome outcome = supervise(workers, options);
  report(plan, outcome, workers);
  return outcome.status;
}

}  // namespace lockstep::launcher
