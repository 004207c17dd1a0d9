#pragma once

#include <lockstep/communicator.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/job_token.h"
#include "comm/failure.h"

namespace lockstep::comm {

class Lifeline;

// A c10d backend and what the Communicator has to know about it.
//
// Every backend takes these calls with flat contiguous tensors: broadcast, allreduce,
// _reduce_scatter_base, _allgather_base, gather, scatter, alltoall_base with empty splits, send,
// recv, barrier. ReduceOp::AVG is each contribution times 1/size, then the sum. A `timeout` option
// of kUnsetTimeout is the group's.
struct Transport {
  enum class Devices { kCpu, kCuda, kAny };

  c10::intrusive_ptr<c10d::Backend> backend;
  std::string name;  // of Communicator::backend()
  Devices devices = Devices::kCpu;
  // For backends whose operations continue after wait(); else null.
  std::shared_ptr<DeviceFailure> failure = nullptr;
};

struct TransportRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  // The job's rank of each rank of the group.
  std::vector<int> job_ranks{0};
  CommunicatorOptions options;
  // Host of the job's rendezvous, for the choice of a network interface.
  std::string rendezvous_address;
  // Other ranks may be Python's: only the backend itself may use the store.
  bool may_be_mixed = false;
  // Replaces shm::host_identity(), so that a test makes several hosts of one.
  std::string host_identity;
  // Known to the ranks of the job alone; null if the group is not a job's.
  std::shared_ptr<const base::JobToken> secret = nullptr;
  // The job's, if it has one.
  std::shared_ptr<Lifeline> lifeline = nullptr;
};

// The rank in a group with these ranks of the job; nullopt: not a member.
std::optional<int> rank_in_group(const std::vector<int>& job_ranks, int job_rank);

// The time limit, at most twenty days. A limit that means "for ever" would overflow when it is
// added to a clock's time, or in the milliseconds that Gloo passes to the system as an int, and
// would have passed at once.
inline std::chrono::milliseconds bounded(std::chrono::milliseconds limit) {
  return std::min<std::chrono::milliseconds>(limit, std::chrono::hours(20 * 24));
}

// Makes the backend that the options name. Blocks until all ranks are connected. ConfigError: no
// such backend, or it cannot be used here. Also throws c10d's exceptions: see failure.h.
Transport make_transport(const TransportRequest& request);

}  // namespace lockstep::comm
