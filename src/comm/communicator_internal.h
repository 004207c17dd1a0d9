#pragma once

#include <c10/core/Device.h>
#include <lockstep/communicator.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

// What the layers above comm need of a group and users of the library do not.
namespace lockstep::comm {

// The device on which every collective of the group accepts tensors: the rank's GPU with nccl,
// else the CPU.
c10::Device device_of(const Communicator& group);

// Blocks until the device has finished all work that it was given; at once for the CPU.
void wait_for_device(c10::Device device);

// A new group of the same ranks that exchanges tensors in host memory, whatever this group's
// backend is: for threads beside the training, whose messages must not queue behind the GPU's
// work. It fails when `group` has failed. Collective.
Communicator make_host_group(const Communicator& group);

// CommError if a collective of the group has failed on its device although its wait()
// returned: call it after reading a result on the host. Costs nothing on the CPU.
void throw_if_failed(const Communicator& group, std::string_view operation);

// Starts the group's timeout for the collectives in a graph that was just started on this
// thread's stream. Every rank calls it. `operation` is a literal.
void watch_graph(const Communicator& group, const char* operation);

// all_gather_bytes whose result only the root gets, so that only one rank needs the memory for
// all of it. Empty on the other ranks. Collective.
std::vector<std::string> gather_bytes(const Communicator& group, const std::string& bytes, int root);

// One collective of a group, as this rank measured it.
struct Call {
  std::string_view operation;  // "all_reduce"; a literal
  int64_t bytes = 0;           // exchanged by all ranks, as nccl-tests count: all blocks of a gather
  std::chrono::nanoseconds time = {};
};

class CallObserver {
 public:
  virtual ~CallObserver() = default;
  // Called after each collective, by the thread that started it.
  virtual void called(const Call& call) = 0;
};

// While a group has an observer every collective is waited for, on its device too, before it
// returns: the time of overlapping operations could not be measured. send() and recv() are not
// observed: two ranks that both send first would wait for each other. A group has one observer;
// a new one replaces it.
void observe(const Communicator& group, std::shared_ptr<CallObserver> observer);
// Does nothing if another observer has replaced this one.
void stop_observing(const Communicator& group, const CallObserver& observer);

// Factor between an operation's bytes / time and the bandwidth that the network had to carry,
// as nccl-tests define it: the product compares with the hardware's speed for any number of ranks.
double bus_factor(std::string_view operation, int ranks);

}  // namespace lockstep::comm
