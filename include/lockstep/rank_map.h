#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// What started this process, and so where its rank came from. kLockstep is
// `lockstep run`, or a program that started its ranks itself through launch().
enum class Launcher { kExplicit, kLockstep, kTorchrun, kSlurm, kMpi, kSingle };

const char* to_string(Launcher launcher);

// Where the ranks of a job meet.
struct Rendezvous {
  enum class Kind {
    kNone,  // a world of one: nobody to meet
    kTcp,   // a key-value store at address:port
    kFile   // a key-value store in a file that every rank can reach
  };

  Kind kind = Kind::kNone;
  std::string address;  // kTcp: host name or IP address, used as given
  uint16_t port = 0;    // kTcp
  std::string path;     // kFile

  // kTcp: the launcher hosts the store and every rank is a client (torchrun's
  // TORCHELASTIC_USE_AGENT_STORE); else rank 0 hosts it.
  bool agent_hosts_store = false;
  // kTcp, rank 0: an inherited listening socket already bound to `port`, or -1.
  int listen_fd = -1;

  // kTcp: the secret by which the ranks know each other, docs/security.md.
  enum class Secret {
    kNone,       // they have none: the store is c10d's and open to the network
    kInherited,  // in the descriptor key_fd that their launcher, the process key_pid, gave them
    kToken,      // LOCKSTEP_JOB_TOKEN of the environment
    kKeyFile     // rank 0 writes it to a file called key_name, which only its user may read
  };
  Secret secret = Secret::kNone;
  int key_fd = -1;
  int key_pid = 0;
  std::string key_name;

  // "tcp://address:port", "file:///path" or "none".
  std::string to_string() const;
};

// Who this process is in its job. Decided once by cluster/placement.h, validated,
// then only read.
struct RankMap {
  Launcher launcher = Launcher::kSingle;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // index among the ranks of this node
  int local_world_size = 1;  // ranks on this node
  // -1 and 0 where nobody tells them: mpirun over several nodes, and RANK and
  // WORLD_SIZE set by hand without GROUP_RANK and GROUP_WORLD_SIZE.
  int node_rank = 0;
  int num_nodes = 1;

  // One entry a node, in node order, where the launcher tells it; else empty.
  std::vector<std::string> nodes;
  std::vector<int> ranks_per_node;

  std::string host;       // this machine's name
  std::string job_id;     // launcher's identity of the job, "" where it has none
  int restart_count = 0;  // failures that the job has survived
  // Which life of the job's ranks this is. Above restart_count where nodes came or went:
  // those lives cost no restart.
  int generation = 0;
  Rendezvous rendezvous;

  // Several lines for a person: launcher, ranks, nodes, rendezvous.
  std::string to_string() const;
};

}  // namespace lockstep
