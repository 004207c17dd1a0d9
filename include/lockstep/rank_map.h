#pragma once

// The position of a process in its job: rank, world size, node, launcher, and where the ranks meet.
// launch() decides it and World::map() returns it; a program reads it and seldom makes one itself.
//
// Example:
//
//   const lockstep::RankMap& map = world.map();
//   std::printf("rank %d of %d on node %d, local rank %d\n", map.rank, map.world_size, map.node_rank,
//               map.local_rank);
//
// More: docs/cluster.md

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// What started this process, and so where its rank comes from. kLockstep: `lockstep run`, or a program
// that started its ranks through launch(). kExplicit: rank and world size given by the program.
// kSingle: no launcher, a world of one.
enum class Launcher { kExplicit, kLockstep, kTorchrun, kSlurm, kMpi, kSingle };

// The name as messages print it.
const char* to_string(Launcher launcher);

// Where the ranks of a job meet.
struct Rendezvous {
  enum class Kind {
    kNone,  // a world of one: no peers
    kTcp,   // a key-value store at address:port
    kFile   // a key-value store in a file that every rank can reach
  };

  Kind kind = Kind::kNone;
  std::string address;  // kTcp: host name or IP address, used as given
  uint16_t port = 0;    // kTcp
  std::string path;     // kFile

  // kTcp. true: the launcher hosts the store and every rank is a client (torchrun's
  // TORCHELASTIC_USE_AGENT_STORE). false: rank 0 hosts it.
  bool agent_hosts_store = false;
  // kTcp, rank 0: an inherited listening socket that is already bound to `port`; -1: none.
  int listen_fd = -1;

  // kTcp: how the ranks get the secret that authenticates them to each other (docs/security.md).
  enum class Secret {
    kNone,       // no secret: the store is c10d's and open to the network
    kInherited,  // in the file descriptor key_fd, inherited from the launcher, process key_pid
    kToken,      // LOCKSTEP_JOB_TOKEN of the environment
    kGiven,      // given_secret: the program has given it to all ranks
    kKeyFile     // rank 0 writes it to a file named key_name, readable by its user only
  };
  Secret secret = Secret::kNone;
  int key_fd = -1;
  int key_pid = 0;
  std::string key_name;
  std::string given_secret;  // never printed

  // "tcp://address:port", "file:///path" or "none".
  std::string to_string() const;
};

// The position of this process in its job. Decided and checked once, before the rank's function runs;
// constant after that.
struct RankMap {
  Launcher launcher = Launcher::kSingle;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // index among the ranks of this node
  int local_world_size = 1;  // ranks on this node
  // -1 and 0 if unknown: under mpirun on several nodes, and where RANK and WORLD_SIZE are set by hand
  // without GROUP_RANK and GROUP_WORLD_SIZE.
  int node_rank = 0;
  int num_nodes = 1;

  // One entry for each node, in node order. Empty if the launcher does not provide them.
  std::vector<std::string> nodes;
  std::vector<int> ranks_per_node;

  std::string host;       // this machine's name
  std::string job_id;     // the launcher's name of the job; empty: none
  int restart_count = 0;  // restarts after a failure so far
  // The attempt this is, from 0. Greater than restart_count if nodes joined or left: those attempts do
  // not count as restarts.
  int generation = 0;
  Rendezvous rendezvous;

  // Several lines to print: launcher, ranks, nodes, rendezvous.
  std::string to_string() const;
};

}  // namespace lockstep
