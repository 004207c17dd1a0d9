#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/shm/layout.h"
#include "comm/shm/reduce_kernels.h"

namespace lockstep::comm::shm {

enum class Kind : uint8_t {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll
};

// The operation that a rank starts; the same on all ranks.
struct Call {
  Kind kind = Kind::kBarrier;
  Reduction reduction = Reduction::kSum;  // if the kind reduces
  c10::ScalarType dtype = c10::ScalarType::Byte;
  int root = 0;  // if the kind has one
  uint64_t numel = 0;

  bool reduces() const {
    return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
  }
  bool has_root() const {
    return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather ||
           kind == Kind::kScatter;
  }
};

// A call packed into the entry of a round, and unpacked for error texts.
Signature sign(const Call& call, uint32_t round);
Call call_of(const Signature& signature);

// "all_reduce(sum) of 16 float", "broadcast of 8 long from rank 0", "barrier".
std::string describe(const Call& call);

class Group;

// An operation that was started. Operations progress inside wait() and isCompleted() of any
// operation of the group, in the calling thread. Its functions are in group.cpp.
class GroupWork : public c10d::Work {
 public:
  GroupWork(std::shared_ptr<Group> group, c10d::OpType type, std::chrono::milliseconds timeout);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void abort() override {}
  std::vector<at::Tensor> result() override { return tensors; }
  // Completes the operation first: a future cannot make progress by itself.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  virtual std::string description() const = 0;

  // Kept alive until the operation is done; results stay.
  std::vector<at::Tensor> tensors;
  bool done = false;

 private:
  std::shared_ptr<Group> group_;
  std::chrono::milliseconds timeout_;
};

// A collective. The backend fills in the call and the memory; Collectives runs it.
//
// A rank contributes `sources`: one block, or one for each rank, each of block_bytes (except in
// all_to_all). Each round moves the same slice of all blocks. `outputs` is where this rank's
// results go: one, or one for each rank.
struct CollectiveWork final : GroupWork {
  using GroupWork::GroupWork;

  std::string description() const override { return describe(call); }

  Call call;
  ElementType element_type = ElementType::kUint8;  // if the call reduces
  size_t element_bytes = 1;
  uint64_t block_bytes = 0;
  c10::SmallVector<std::byte*, 2> sources;
  c10::SmallVector<std::byte*, 2> outputs;
  bool exposes = false;            // peers read this rank's sources
  bool contiguous_sources = true;  // sources[i] is sources[0] + i * block_bytes
  // all_to_all: the bytes of each block; the first round sends them to the peers.
  std::vector<uint64_t> source_bytes;
  std::vector<uint64_t> output_bytes;

  // Progress, updated by Collectives.
  uint64_t slice_bytes = 0;
  uint32_t num_rounds = 0;
  uint32_t rounds_published = 0;
  uint32_t rounds_finished = 0;
  bool split = false;                // a large all-reduce: each rank combines a part of it
  bool rounds_unknown = false;       // all_to_all before its first round is finished
  bool sources_exposed = false;      // peers read the tensor itself
  std::optional<Location> location;  // of sources[0], if it is in shared memory
};

struct MessageWork final : GroupWork {
  using GroupWork::GroupWork;

  std::string description() const override;

  bool is_send = false;
  int peer = 0;
  int tag = 0;
  std::byte* data = nullptr;
  uint64_t bytes = 0;

  // State of a send, updated by PointToPoint.
  int post = -1;                      // index among the posts to the peer, or -1
  uint64_t number = 0;                // of the message among those to the peer, if it has a post
  std::shared_ptr<std::byte> staged;  // a copy in shared memory
  uint64_t staged_bytes = 0;
};

}  // namespace lockstep::comm::shm
