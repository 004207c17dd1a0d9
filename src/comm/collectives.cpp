// The tensor operations of Communicator: check, flatten, hand to c10d.

#include <lockstep/communicator.h>

#include "comm/communicator_impl.h"

namespace lockstep {
namespace {

c10d::ReduceOp to_c10d(ReduceOp op, int size) {
  // Of one rank the mean is the sum.
  if (op == ReduceOp::kMean && size == 1) return c10d::ReduceOp::SUM;
  switch (op) {
    case ReduceOp::kSum: return c10d::ReduceOp::SUM;
    case ReduceOp::kMean: return c10d::ReduceOp::AVG;
    case ReduceOp::kMin: return c10d::ReduceOp::MIN;
    case ReduceOp::kMax: return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct: return c10d::ReduceOp::PRODUCT;
  }
  return c10d::ReduceOp::UNUSED;
}

// c10d's gather and scatter take the root's blocks as a list, and none elsewhere.
std::vector<std::vector<at::Tensor>> root_blocks(bool is_root, const at::Tensor& whole, int size) {
  if (!is_root) {
    return {};
  }
  return {comm::wire_view(whole).chunk(size)};
}

int64_t num_bytes(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

}  // namespace

// Empty tensors are empty on every rank: nothing to do, and no backend to ask
// whether it likes them.

Work Communicator::broadcast(const at::Tensor& tensor, int root, Timeout timeout) const {
  const auto check = impl_->check("broadcast");
  check.tensor("tensor", tensor);
  check.root(root);
  if (tensor.numel() == 0) {
    return {};
  }
  return impl_->start("broadcast", num_bytes(tensor), timeout, [&](c10d::Backend& backend, auto limit) {
    std::vector<at::Tensor> tensors{comm::wire_view(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = limit;
    return backend.broadcast(tensors, options);
  });
}

Work Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op, Timeout timeout) const {
  const auto check = impl_->check("all_reduce");
  check.tensor("tensor", tensor);
  check.reducible("tensor", tensor, op);
  if (tensor.numel() == 0) {
    return {};
  }
  return impl_->start("all_reduce", num_bytes(tensor), timeout, [&](c10d::Backend& backend, auto limit) {
    std::vector<at::Tensor> tensors{comm::wire_view(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op, size());
    options.timeout = limit;
    return backend.allreduce(tensors, options);
  });
}

Work Communicator::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                  Timeout timeout) const {
  const auto check = impl_->check("reduce_scatter");
  check.blocks("input", input, "output", output);
  check.reducible("input", input, op);
  if (output.numel() == 0) {
    return {};
  }
  return impl_->start("reduce_scatter", num_bytes(input), timeout, [&](c10d::Backend& backend, auto limit) {
    at::Tensor out = comm::wire_view(output);
    at::Tensor in = comm::wire_view(input);
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(op, size());
    options.timeout = limit;
    return backend._reduce_scatter_base(out, in, options);
  });
}

Work Communicator::all_gather(const at::Tensor& output, const at::Tensor& input, Timeout timeout) const {
  impl_->check("all_gather").blocks("output", output, "input", input);
  if (input.numel() == 0) {
    return {};
  }
  return impl_->start("all_gather", num_bytes(output), timeout, [&](c10d::Backend& backend, auto limit) {
    at::Tensor out = comm::wire_view(output);
    at::Tensor in = comm::wire_view(input);
    c10d::AllgatherOptions options;
    options.timeout = limit;
    return backend._allgather_base(out, in, options);
  });
}

Work Communicator::gather(const at::Tensor& output, const at::Tensor& input, int root,
                          Timeout timeout) const {
  const auto check = impl_->check("gather");
  const bool is_root = root == rank();
  check.root(root);
  check.tensor("input", input);
  if (is_root) {
    check.blocks("output", output, "input", input);
  }
  if (input.numel() == 0) {
    return {};
  }
  return impl_->start("gather", num_bytes(input) * size(), timeout, [&](c10d::Backend& backend, auto limit) {
    auto outputs = root_blocks(is_root, output, size());
    std::vector<at::Tensor> inputs{comm::wire_view(input)};
    c10d::GatherOptions options;
    options.rootRank = root;
    options.timeout = limit;
    return backend.gather(outputs, inputs, options);
  });
}

Work Communicator::scatter(const at::Tensor& output, const at::Tensor& input, int root,
                           Timeout timeout) const {
  const auto check = impl_->check("scatter");
  const bool is_root = root == rank();
  check.root(root);
  check.tensor("output", output);
  if (is_root) {
    check.blocks("input", input, "output", output);
  }
  if (output.numel() == 0) {
    return {};
  }
  return impl_->start("scatter", num_bytes(output) * size(), timeout,
                      [&](c10d::Backend& backend, auto limit) {
                        std::vector<at::Tensor> outputs{comm::wire_view(output)};
                        auto inputs = root_blocks(is_root, input, size());
                        c10d::ScatterOptions options;
                        options.rootRank = root;
                        options.timeout = limit;
                        return backend.scatter(outputs, inputs, options);
                      });
}

Work Communicator::all_to_all(const at::Tensor& output, const at::Tensor& input, Timeout timeout) const {
  impl_->check("all_to_all").exchange(output, input);
  if (input.numel() == 0) {
    return {};
  }
  return impl_->start("all_to_all", num_bytes(input), timeout, [&](c10d::Backend& backend, auto limit) {
    at::Tensor out = comm::wire_view(output);
    at::Tensor in = comm::wire_view(input);
    std::vector<int64_t> equal_splits;
    c10d::AllToAllOptions options;
    options.timeout = limit;
    return backend.alltoall_base(out, in, equal_splits, equal_splits, options);
  });
}

Work Communicator::send(const at::Tensor& tensor, int destination, int tag, Timeout timeout) const {
  const auto check = impl_->check("send");
  check.message("tensor", tensor);
  check.peer("destination", destination);
  return impl_->start_with_peer("send", timeout, [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors{comm::wire_view(tensor)};
    return backend.send(tensors, destination, tag);
  });
}

Work Communicator::recv(const at::Tensor& tensor, int source, int tag, Timeout timeout) const {
  const auto check = impl_->check("recv");
  check.message("tensor", tensor);
  check.peer("source", source);
  return impl_->start_with_peer("recv", timeout, [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors{comm::wire_view(tensor)};
    return backend.recv(tensors, source, tag);
  });
}

void Communicator::barrier(Timeout timeout) const {
  impl_
      ->start("barrier", 0, timeout,
              [&](c10d::Backend& backend, auto limit) {
                c10d::BarrierOptions options;
                options.timeout = limit;
                return backend.barrier(options);
              })
      .wait();
}

}  // namespace lockstep
