#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "comm/shm/descriptor.h"

namespace lockstep::comm::shm {

class Group;

// An operation that was started. Progress is made inside wait() and isCompleted()
// of any operation of the group, in the calling thread.
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

  // Held until the operation is done, then dropped or, as results, kept.
  std::vector<at::Tensor> tensors;
  bool done = false;

 private:
  std::shared_ptr<Group> group_;
  std::chrono::milliseconds timeout_;
};

// A collective. The backend fills in what it is about; Collectives runs it.
//
// A rank contributes `sources`: one block, or one a rank, each block_bytes long
// (all_to_all apart). Each round moves the same slice of all of them. `outputs`
// are where this rank's results go: one, or one a rank.
struct CollectiveWork final : GroupWork {
  using GroupWork::GroupWork;

  std::string description() const override { return describe(call); }

  Call call;
  ElementType element_type = ElementType::kUint8;  // where the call reduces
  size_t element_bytes = 1;
  uint64_t block_bytes = 0;
  c10::SmallVector<std::byte*, 2> sources;
  c10::SmallVector<std::byte*, 2> outputs;
  bool exposes = false;            // peers read this rank's sources
  bool contiguous_sources = true;  // sources[i] is sources[0] + i * block_bytes
  // all_to_all: the bytes of each block; the first round tells the peers.
  std::vector<uint64_t> source_bytes;
  std::vector<uint64_t> output_bytes;

  // Progress, kept by Collectives.
  uint64_t slice_bytes = 0;
  uint32_t num_rounds = 0;
  uint32_t rounds_published = 0;
  uint32_t rounds_finished = 0;
  bool divided = false;              // a large all-reduce: each rank combines some of it
  bool rounds_unknown = false;       // all_to_all before its first round is finished
  bool sources_exposed = false;      // peers read the tensor itself
  std::optional<Location> location;  // of sources[0], where it is in shared memory
};

struct MessageWork final : GroupWork {
  using GroupWork::GroupWork;

  std::string description() const override;

  bool is_send = false;
  int peer = 0;
  int tag = 0;
  std::byte* data = nullptr;
  uint64_t bytes = 0;

  // Sends: kept by PointToPoint.
  int post = -1;                      // index among the posts to the peer, or -1
  uint64_t number = 0;                // of the message among those to the peer, where it has a post
  std::shared_ptr<std::byte> staged;  // a copy in shared memory
  uint64_t staged_bytes = 0;
};

}  // namespace lockstep::comm::shm
