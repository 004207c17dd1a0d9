#pragma once

// Exchanges tensors between the ranks of a job: broadcast, all-reduce, all-gather and the other
// collectives, and messages between two ranks. The backend is shared memory, Gloo, MPI or NCCL.
// Training programs get a communicator from World::communicator() and rarely call it; the trainer and
// DataParallel do.
//
// Example:
//
//   const lockstep::Communicator& ranks = world.communicator();
//   const torch::Tensor sum = torch::ones({3});
//   ranks.all_reduce(sum).wait();  // every element is now ranks.size()
//
// More: docs/comm.md

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace at {
class Tensor;
}

namespace lockstep {

struct RankMap;

// kMean needs a floating-point or complex tensor; complex ones have kSum and kMean only.
enum class ReduceOp { kSum, kMean, kMin, kMax, kProduct };

struct CommunicatorOptions {
  // gloo, nccl, mpi, shm, fake or auto. auto is nccl if device_index names a device; otherwise shared
  // memory inside a host and Gloo between hosts, and no backend for a single rank.
  std::string backend = "auto";
  // How long a collective waits for its peers before it throws CommError.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // How long connect() waits for the other ranks.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  // Network interface or address for Gloo. Empty: GLOO_SOCKET_IFNAME, or else the interface that
  // reaches the rendezvous address.
  std::string interface;
  // CUDA device of this rank; -1: CPU.
  int device_index = -1;
};

// A running operation. Copies refer to the same operation.
//
// The operation owns its tensors until wait() returns: do not read or write them before. On the CPU
// wait() blocks; on CUDA it makes the current stream wait, as c10d does. Some backends make progress
// only inside wait(), so wait for every operation, in the order in which they were started.
class Work {
 public:
  struct Impl;

  Work() = default;  // a finished operation
  explicit Work(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  // Throws CommError: the timeout passed, or a peer died. May be called again, with the same result.
  void wait();
  // Never blocks, but makes progress if the backend needs the calling thread for it. Sends and receives
  // over Gloo complete in wait() only.
  bool done();
  // Marks this rank as busy elsewhere: until it calls wait(), a launcher that looks for stalled jobs
  // does not count it as waiting.
  void set_aside();

 private:
  std::shared_ptr<Impl> impl_;
};

// A group of ranks that exchange tensors. A small handle: copies share one group, which closes when the
// last copy is destroyed.
//
// Collective: every rank of the group calls the same operations in the same order, with tensors of one
// shape and dtype (except all_gather_uneven). Tensors are contiguous. One thread at a time uses a
// group. A group of one rank works in the same way, so programs need no branch for it.
//
// An operation that returns a Work starts at once and returns; `.wait()` completes it. The other
// operations block. `timeout` overrides the group's timeout for one operation.
//
// Failure: if a peer dies or leaves, pending and later operations throw CommError on every surviving
// rank and name the rank that is gone.
class Communicator {
 public:
  class Impl;
  using Timeout = std::optional<std::chrono::milliseconds>;

  // A group of one rank, without a backend.
  Communicator();
  explicit Communicator(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  // Joins the job of the map. Collective; blocks until all ranks have joined. ConfigError: the backend
  // is unknown or not available here. CommError: some ranks did not arrive within
  // options.connect_timeout.
  static Communicator connect(const RankMap& map, const CommunicatorOptions& options = {});

  // This rank's number in the group, 0 <= rank() < size().
  int rank() const;
  int size() const;
  // The backend in use, for example "shm" or "shm+gloo"; never "auto". "none": a group of one that did
  // not ask for a backend.
  const std::string& backend() const;

  // Copies the root's tensor into the tensor of every rank.
  Work broadcast(const at::Tensor& tensor, int root = 0, Timeout timeout = {}) const;
  // Reduces in place: every rank gets the same bits. kMean multiplies each contribution by 1/size() and
  // then sums, as PyTorch's DDP does.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum, Timeout timeout = {}) const;
  // `input` has size() equal blocks; `output` becomes this rank's block, reduced over all ranks.
  // `output` may be that block of `input`; the rest of `input` is undefined afterwards.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum,
                      Timeout timeout = {}) const;
  // `output` has size() blocks of the size of `input`, in rank order.
  Work all_gather(const at::Tensor& output, const at::Tensor& input, Timeout timeout = {}) const;
  // Tensors may differ between ranks in the first dimension. Returns one tensor for each rank. Blocks.
  std::vector<at::Tensor> all_gather_uneven(const at::Tensor& input, Timeout timeout = {}) const;
  // On the root `output` is as in all_gather(). On other ranks it is ignored and may be undefined.
  Work gather(const at::Tensor& output, const at::Tensor& input, int root = 0, Timeout timeout = {}) const;
  // On the root `input` has size() equal blocks in rank order. On other ranks it is ignored and may be
  // undefined.
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root = 0, Timeout timeout = {}) const;
  // `input` and `output` have size() equal blocks: block i of `input` goes to rank i.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input, Timeout timeout = {}) const;
  // A message to rank `destination`, which receives it with recv(), this rank as `source` and the same
  // tag. Only these two ranks take part.
  Work send(const at::Tensor& tensor, int destination, int tag = 0, Timeout timeout = {}) const;
  Work recv(const at::Tensor& tensor, int source, int tag = 0, Timeout timeout = {}) const;
  // Blocks until all ranks of the group have called it.
  void barrier(Timeout timeout = {}) const;

  // Checks that all ranks take part before a collective that some might leave out by mistake, such as a
  // save that only rank 0 calls. Collective; blocks until every rank has called it with the same
  // `purpose`. If some have not after `patience`, all ranks throw ConfigError: those that called it at
  // once, with the names of the missing ranks, and the missing ranks when they call it. Costs a few
  // round trips to the job's store, and needs no answer from a rank that is busy elsewhere.
  void meet(const std::string& purpose, std::chrono::milliseconds patience = std::chrono::seconds(10)) const;

  // Bytes of any length, which may differ between ranks. Collective; both block.
  std::string broadcast_bytes(std::string bytes, int root = 0, Timeout timeout = {}) const;
  std::vector<std::string> all_gather_bytes(const std::string& bytes, Timeout timeout = {}) const;

  // A new group of the given ranks of this group, in the given order. Collective: every rank of this
  // group calls it with the same list. nullopt on ranks that are not in the list.
  std::optional<Communicator> subgroup(const std::vector<int>& ranks) const;

  // A flat tensor of `numel` elements in memory that this group reduces without a copy, or in ordinary
  // memory if the backend has none. `like` gives dtype and device. The tensor may outlive the group.
  // Not collective.
  at::Tensor allocate(int64_t numel, const at::Tensor& like) const;

  // For the library's own layers.
  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

// Work that may fail on some ranks, such as opening a file: no rank waits in a collective for one that
// has thrown. Every rank of the group calls these functions. They block.

// Runs `work` on rank 0 and returns its result on all ranks. If it throws, every rank throws a
// ConfigError with the same text; launch() prints it once, on rank 0.
std::string on_main_rank(const Communicator& group, const std::function<std::string()>& work);

// Runs `work` on every rank. If it throws a ConfigError on some of them, every rank throws that of the
// lowest one; launch() prints it once, on that rank. Other exceptions leave the failing rank at once.
void on_every_rank(const Communicator& group, const std::function<void()>& work);

}  // namespace lockstep
