#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep::comm {

// The Work of an operation that was complete when it was started.
class CompletedWork final : public c10d::Work {
 public:
  CompletedWork(int rank, c10d::OpType operation) : Work(rank, operation) { finish(); }
};

}  // namespace lockstep::comm
