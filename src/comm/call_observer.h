#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace lockstep::comm {

// One operation of a group, as this rank saw it.
struct Call {
  std::string_view operation;  // "all_reduce"; a literal
  int64_t bytes = 0;           // of all that is exchanged, as nccl-tests count: all blocks of a gather
  std::chrono::nanoseconds time = {};
};

// Told of each operation of a group (Communicator::Impl::observe) as it ends, by the thread
// that started it.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  virtual void called(const Call& call) = 0;
};

// What the bandwidth of an operation (bytes / time) is multiplied by to get what the network
// had to carry, as nccl-tests define it: it compares with the hardware's speed, whatever the
// number of ranks.
double bus_factor(std::string_view operation, int ranks);

}  // namespace lockstep::comm
