#pragma once

#include <lockstep/rank_map.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace lockstep::comm {

// The store of a job whose ranks have a common secret: rank 0 hosts it, and only clients that know
// the secret can read or write. c10d's TCPStore has no authentication; jobs with Python ranks and
// torchrun's jobs use it.
//
// Blocks until rank 0 is reached and, on rank 0, until all ranks came. CommError names the address,
// the rank that hosts the store, and the ranks that did not come; ConfigError: the secret cannot be
// read.
c10::intrusive_ptr<c10d::Store> open_job_store(const RankMap& map, std::chrono::milliseconds timeout);

// ConfigError if the rendezvous host is unknown on this machine. Retries for some seconds, at most
// for the timeout.
void check_store_host(const RankMap& map, std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
