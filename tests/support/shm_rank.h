#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "comm/shm/shm_backend.h"
#include "support/rank_threads.h"

namespace lockstep::test {

// One rank's backend with calls that take single tensors.
struct ShmRank {
  int rank;
  int size;
  c10::intrusive_ptr<c10d::Backend> backend;
  bool shared = false;  // new_tensor: in the group's memory

  at::Tensor new_tensor(const at::Tensor& values) const {
    if (!shared || values.numel() == 0) {
      return values.clone();
    }
    auto tensor = backend->allocateTensor(values.numel(), values.options()).view(values.sizes());
    tensor.copy_(values);
    return tensor;
  }

  c10::intrusive_ptr<c10d::Work> all_reduce(at::Tensor tensor,
                                            c10d::ReduceOp op = c10d::ReduceOp::SUM) const {
    std::vector<at::Tensor> tensors{std::move(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    return backend->allreduce(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(at::Tensor tensor, int root) const {
    std::vector<at::Tensor> tensors{std::move(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return backend->broadcast(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> send(at::Tensor tensor, int to, int tag) const {
    std::vector<at::Tensor> tensors{std::move(tensor)};
    return backend->send(tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(at::Tensor tensor, int from, int tag) const {
    std::vector<at::Tensor> tensors{std::move(tensor)};
    return backend->recv(tensors, from, tag);
  }
};

// run_ranks with a backend each.
template <typename Function>
void run_shm_ranks(int size, Function function,
                   std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  run_ranks(size, [&](int rank, c10::intrusive_ptr<c10d::Store> store) {
    function(ShmRank{rank, size, comm::make_shm_backend(store, rank, size, timeout)});
  });
}

}  // namespace lockstep::test
