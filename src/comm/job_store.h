#pragma once

#include <lockstep/rank_map.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep::comm {

// The store of a job whose ranks have a common secret: rank 0 hosts it, and nobody who does
// not know the secret reads or writes anything. c10d's TCPStore, which has no such thing, is
// for jobs with Python ranks and for torchrun's.
//
// Blocks until rank 0 is reached and, on rank 0, until all ranks came. CommError tells the
// address, who is expected there, and who did not come; ConfigError: the secret cannot be had.
c10::intrusive_ptr<c10d::Store> open_job_store(const RankMap& map, std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
