#pragma once

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

enum class ReduceOp { kSum, kMean, kMin, kMax, kProduct };

struct CommunicatorOptions {
  // gloo, nccl, mpi, shm, fake, or auto: nccl where device_index names a device;
  // else shared memory inside a host and Gloo between hosts; nothing for one rank.
  std::string backend = "auto";
  // How long a collective may wait for its peers before it throws CommError.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // How long connecting may take.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
  // Network interface or address for Gloo; empty: the one that reaches the
  // rendezvous address, GLOO_SOCKET_IFNAME before that.
  std::string interface;
  // CUDA device of this rank, or -1 on the CPU.
  int device_index = -1;
};

// A running collective. Copyable; all copies are the same operation.
//
// Tensors handed to the collective belong to it until wait() has returned. On the
// CPU wait() blocks; on CUDA it makes the current stream wait, as c10d does.
// An operation may need its wait() to make progress: wait for what you started,
// in the order in which you started it.
class Work {
 public:
  struct Impl;

  Work() = default;  // already done
  explicit Work(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  // Throws CommError: the timeout passed, or a peer died. May be called again.
  void wait();
  // Never blocks; does what progress it can make. A send or receive over Gloo is
  // done in wait() only.
  bool done();
  // This rank does other things until wait(): a launcher that looks for hangs does not count
  // it as waiting until then.
  void set_aside();

 private:
  std::shared_ptr<Impl> impl_;
};

// The ranks of a job, or some of them, that exchange tensors. A small handle:
// copies share one group, which closes when the last copy is gone.
//
// Every rank calls the same operations in the same order with tensors of one shape
// and dtype (all_gather_uneven apart). One thread at a time per group. Tensors are
// contiguous. A group of one rank works like any other and needs no branch.
//
// Operations start at once and return; `.wait()` completes them. Those without a
// Work block. A `timeout` of nullopt is the group's.
//
// Failure: a peer that dies or leaves makes the pending and all later operations
// throw CommError on every survivor, naming the rank.
class Communicator {
 public:
  class Impl;
  using Timeout = std::optional<std::chrono::milliseconds>;

  // A group of one, with no backend to fail.
  Communicator();
  explicit Communicator(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  // Joins the job of the map. Blocks until all ranks have joined. ConfigError: a
  // backend that is unknown or cannot be used here; CommError: nobody came.
  static Communicator connect(const RankMap& map, const CommunicatorOptions& options = {});

  int rank() const;
  int size() const;
  // The backend in use, "shm" or "shm+gloo" for example; never "auto". "none" for a
  // group of one that did not ask for a backend.
  const std::string& backend() const;

  Work broadcast(const at::Tensor& tensor, int root = 0, Timeout timeout = {}) const;
  // In place. kMean needs a floating-point tensor; each contribution is multiplied
  // by 1/size before the sum, as PyTorch's DDP does.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum, Timeout timeout = {}) const;
  // input: size() equal blocks; output: this rank's block, reduced. Output may be its block
  // of the input itself: the rest of the input is undefined afterwards then.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum,
                      Timeout timeout = {}) const;
  // output: size() blocks of input's size, in rank order.
  Work all_gather(const at::Tensor& output, const at::Tensor& input, Timeout timeout = {}) const;
  // Tensors may differ between ranks in their first dimension. Blocks.
  std::vector<at::Tensor> all_gather_uneven(const at::Tensor& input, Timeout timeout = {}) const;
  // output as in all_gather on the root; ignored, may be undefined, elsewhere.
  Work gather(const at::Tensor& output, const at::Tensor& input, int root = 0, Timeout timeout = {}) const;
  // input as output of gather on the root; ignored, may be undefined, elsewhere.
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root = 0, Timeout timeout = {}) const;
  // size() equal blocks each: block i of input goes to rank i.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input, Timeout timeout = {}) const;
  Work send(const at::Tensor& tensor, int destination, int tag = 0, Timeout timeout = {}) const;
  Work recv(const at::Tensor& tensor, int source, int tag = 0, Timeout timeout = {}) const;
  void barrier(Timeout timeout = {}) const;

  // Before a collective that some ranks may have left out by mistake, such as a save that
  // rank 0 calls alone. Blocks until every rank has called it with the same `purpose`;
  // after `patience` ConfigError on those that have, which names the others, and on these
  // when they come. Ranks agree: all return, or all throw. Needs no answer from ranks that
  // are busy elsewhere, and costs a few round trips to the store.
  void meet(const std::string& purpose, std::chrono::milliseconds patience = std::chrono::seconds(10)) const;

  // Bytes of any length. Block.
  std::string broadcast_bytes(std::string bytes, int root = 0, Timeout timeout = {}) const;
  std::vector<std::string> all_gather_bytes(const std::string& bytes, Timeout timeout = {}) const;

  // A new group of these ranks of this one, in this order. Every rank of this
  // group calls it with the same list; a rank that is not in it gets nullopt.
  std::optional<Communicator> subgroup(const std::vector<int>& ranks) const;

  // A flat tensor in memory that this group reduces without copying, or ordinary
  // memory where the backend has none. It may outlive the group. `like` gives
  // dtype and device.
  at::Tensor allocate(int64_t numel, const at::Tensor& like) const;

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
