#include "comm/mpi/mpi_backend.h"

#include <fmt/format.h>

#include <limits>

#include "comm/mpi/mpi_error.h"
#include "comm/mpi/mpi_types.h"

namespace lockstep::comm {
namespace {

using c10d::OpType;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr int64_t kPiece = int64_t{1} << 30;

// Blocks of one rank; MPI counts them in int.
int count_of(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.numel() <= std::numeric_limits<int>::max(), "a block of ", tensor.numel(),
                    " elements is more than MPI counts");
  return static_cast<int>(tensor.numel());
}

MPI_Datatype type_of(const at::Tensor& tensor) { return mpi_datatype(tensor.scalar_type()); }

}  // namespace

MpiBackend::MpiBackend(int rank, const std::vector<int>& job_ranks, std::chrono::milliseconds timeout)
    : Backend(rank, static_cast<int>(job_ranks.size())),
      group_(std::make_shared<MpiGroup>(rank, job_ranks)),
      timeout_(timeout) {}

template <typename Call>
WorkPtr MpiBackend::start(OpType operation, const char* name, std::chrono::milliseconds timeout,
                          std::vector<at::Tensor> tensors, Call&& call, std::function<void()> then) {
  TORCH_CHECK(!group_->is_broken(), "the group is broken by an earlier failure");
  auto work = c10::make_intrusive<MpiWork>(group_, getRank(), operation,
                                           timeout == c10d::kUnsetTimeout ? timeout_ : timeout,
                                           std::move(tensors), std::move(then));
  check_mpi(call(work->new_request()), name);
  return work;
}

template <typename Call>
WorkPtr MpiBackend::start_in_pieces(OpType operation, const char* name, std::chrono::milliseconds timeout,
                                    const at::Tensor& tensor, Call&& call) {
  TORCH_CHECK(!group_->is_broken(), "the group is broken by an earlier failure");
  auto work = c10::make_intrusive<MpiWork>(group_, getRank(), operation,
                                           timeout == c10d::kUnsetTimeout ? timeout_ : timeout,
                                           std::vector<at::Tensor>{tensor});
  auto* data = static_cast<char*>(tensor.data_ptr());
  for (int64_t begin = 0; begin < tensor.numel(); begin += kPiece) {
    const int64_t count = std::min(kPiece, tensor.numel() - begin);
    check_mpi(call(data + begin * tensor.element_size(), static_cast<int>(count), work->new_request()), name);
  }
  return work;
}

WorkPtr MpiBackend::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = tensors.at(0);
  return start_in_pieces(OpType::BROADCAST, "MPI_Ibcast", options.timeout, tensor,
                         [&](void* data, int count, MPI_Request* request) {
                           return MPI_Ibcast(data, count, type_of(tensor), static_cast<int>(options.rootRank),
                                             group_->communicator(), request);
                         });
}

WorkPtr MpiBackend::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor& tensor = tensors.at(0);
  c10d::ReduceOp op = options.reduceOp;
  if (op.op_ == c10d::ReduceOp::AVG) {
    at::NoGradGuard no_grad;
    tensor.mul_(1.0 / getSize());
    op = c10d::ReduceOp::SUM;
  }
  const MPI_Op operation = mpi_operation(op, tensor.scalar_type());
  return start_in_pieces(OpType::ALLREDUCE, "MPI_Iallreduce", options.timeout, tensor,
                         [&](void* data, int count, MPI_Request* request) {
                           return MPI_Iallreduce(MPI_IN_PLACE, data, count, type_of(tensor), operation,
                                                 group_->communicator(), request);
                         });
}

WorkPtr MpiBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::ReduceScatterOptions& options) {
  at::Tensor contribution = input;
  c10d::ReduceOp op = options.reduceOp;
  if (op.op_ == c10d::ReduceOp::AVG) {
    at::NoGradGuard no_grad;
    contribution = input.mul(1.0 / getSize());
    op = c10d::ReduceOp::SUM;
  }
  const MPI_Op operation = mpi_operation(op, input.scalar_type());
  return start(OpType::_REDUCE_SCATTER_BASE, "MPI_Ireduce_scatter_block", options.timeout,
               {output, contribution}, [&](MPI_Request* request) {
                 return MPI_Ireduce_scatter_block(contribution.data_ptr(), output.data_ptr(),
                                                  count_of(output), type_of(output), operation,
                                                  group_->communicator(), request);
               });
}

WorkPtr MpiBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                    const c10d::AllgatherOptions& options) {
  return start(OpType::_ALLGATHER_BASE, "MPI_Iallgather", options.timeout, {output, input},
               [&](MPI_Request* request) {
                 return MPI_Iallgather(input.data_ptr(), count_of(input), type_of(input), output.data_ptr(),
                                       count_of(input), type_of(input), group_->communicator(), request);
               });
}

WorkPtr MpiBackend::gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                           const c10d::GatherOptions& options) {
  const at::Tensor& input = inputs.at(0);
  const bool is_root = options.rootRank == getRank();
  const at::Tensor whole = is_root ? at::empty({getSize(), input.numel()}, input.options()) : at::Tensor();
  std::function<void()> then;
  if (is_root) {
    then = [whole, blocks = outputs.at(0)] {
      for (size_t i = 0; i < blocks.size(); ++i) {
        blocks[i].view(-1).copy_(whole[static_cast<int64_t>(i)]);
      }
    };
  }
  return start(
      OpType::GATHER, "MPI_Igather", options.timeout, {input, whole},
      [&](MPI_Request* request) {
        return MPI_Igather(input.data_ptr(), count_of(input), type_of(input),
                           is_root ? whole.data_ptr() : nullptr, count_of(input), type_of(input),
                           static_cast<int>(options.rootRank), group_->communicator(), request);
      },
      then);
}

WorkPtr MpiBackend::scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                            const c10d::ScatterOptions& options) {
  const at::Tensor& output = outputs.at(0);
  const bool is_root = options.rootRank == getRank();
  const at::Tensor whole = is_root ? at::cat(inputs.at(0)) : at::Tensor();
  return start(OpType::SCATTER, "MPI_Iscatter", options.timeout, {output, whole}, [&](MPI_Request* request) {
    return MPI_Iscatter(is_root ? whole.data_ptr() : nullptr, count_of(output), type_of(output),
                        output.data_ptr(), count_of(output), type_of(output),
                        static_cast<int>(options.rootRank), group_->communicator(), request);
  });
}

WorkPtr MpiBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                  std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(output_splits.empty() && input_splits.empty(), "uneven splits");
  const int64_t block = input.numel() / getSize();
  TORCH_CHECK_VALUE(block <= std::numeric_limits<int>::max(), "a block of ", block,
                    " elements is more than MPI counts");
  const auto count = static_cast<int>(block);
  return start(OpType::ALLTOALL_BASE, "MPI_Ialltoall", options.timeout, {output, input},
               [&](MPI_Request* request) {
                 return MPI_Ialltoall(input.data_ptr(), count, type_of(input), output.data_ptr(), count,
                                      type_of(input), group_->communicator(), request);
               });
}

WorkPtr MpiBackend::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  const at::Tensor& tensor = tensors.at(0);
  return start(OpType::SEND, "MPI_Isend", c10d::kUnsetTimeout, {tensor}, [&](MPI_Request* request) {
    return MPI_Isend(tensor.data_ptr(), count_of(tensor), type_of(tensor), destination, tag,
                     group_->communicator(), request);
  });
}

WorkPtr MpiBackend::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  const at::Tensor& tensor = tensors.at(0);
  return start(OpType::RECV, "MPI_Irecv", c10d::kUnsetTimeout, {tensor}, [&](MPI_Request* request) {
    return MPI_Irecv(tensor.data_ptr(), count_of(tensor), type_of(tensor), source, tag,
                     group_->communicator(), request);
  });
}

WorkPtr MpiBackend::barrier(const c10d::BarrierOptions& options) {
  return start(OpType::BARRIER, "MPI_Ibarrier", options.timeout, {},
               [&](MPI_Request* request) { return MPI_Ibarrier(group_->communicator(), request); });
}

}  // namespace lockstep::comm
