#pragma once

#include <ATen/core/Tensor.h>
#include <mpi.h>

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "comm/mpi/mpi_group.h"

namespace lockstep::comm {

// Nonblocking MPI calls of one operation. They move inside MPI_Test, that is inside
// wait() and isCompleted(), in the calling thread.
class MpiWork final : public c10d::Work {
 public:
  // `tensors` are kept until MPI is done with them; `then` runs after success.
  MpiWork(std::shared_ptr<MpiGroup> group, int rank, c10d::OpType operation,
          std::chrono::milliseconds timeout, std::vector<at::Tensor> tensors,
          std::function<void()> then = {});
  ~MpiWork() override;

  // For the MPI call that starts the operation.
  MPI_Request* new_request() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

  bool isCompleted() override;
  bool isSuccess() const override { return done_ && !failure_; }
  std::exception_ptr exception() const override { return failure_; }
  bool wait(std::chrono::milliseconds timeout) override;

 private:
  void poll();
  void fail(const std::string& what);

  std::shared_ptr<MpiGroup> group_;
  std::chrono::milliseconds timeout_;
  std::vector<at::Tensor> tensors_;
  std::function<void()> then_;
  std::vector<MPI_Request> requests_;
  bool done_ = false;
  std::exception_ptr failure_;
};

}  // namespace lockstep::comm
