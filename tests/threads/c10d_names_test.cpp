// LibTorch has new names for collectives on one tensor from 2.14 on, and calls backends by them: a
// call by either name comes to our backend.

#include <gtest/gtest.h>
#include <lockstep/c10d.h>
#include <lockstep/communicator.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "support/group_case.h"
#include "torch_private/c10d.h"

namespace lockstep {
namespace {

using test::GroupCase;
using test::run_group;

template <typename Backend>
void mean_scatter(Backend& backend, at::Tensor output, at::Tensor input) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  if constexpr (torch_private::HasSingleNames<Backend>) {
    backend.reduce_scatter_single(output, input, options)->wait();
  } else {
    backend._reduce_scatter_base(output, input, options)->wait();
  }
}

template <typename Backend>
void all_gather(Backend& backend, at::Tensor output, at::Tensor input) {
  if constexpr (torch_private::HasSingleNames<Backend>) {
    backend.all_gather_single(output, input, {})->wait();
  } else {
    backend._allgather_base(output, input, {})->wait();
  }
}

template <typename Backend>
void all_to_all(Backend& backend, at::Tensor output, at::Tensor input) {
  std::vector<int64_t> equal;
  if constexpr (torch_private::HasSingleNames<Backend>) {
    backend.all_to_all_single(output, input, equal, equal, {})->wait();
  } else {
    backend.alltoall_base(output, input, equal, equal, {})->wait();
  }
}

at::Tensor values(int rank, int64_t count) { return torch::arange(count, at::kFloat) + 100 * rank; }

TEST(C10dNames, TheNewestNamesComeToOurBackend) {
  for (const GroupCase& group_case :
       {GroupCase{"gloo", {0, 0}}, GroupCase{"shm", {0, 0}}, GroupCase{"auto", {0, 0, 1, 1}}}) {
    SCOPED_TRACE(group_case.name());
    run_group(group_case, [](Communicator& group) {
      const auto backend = backend_of(group);
      const int size = group.size();
      std::vector<at::Tensor> rows;
      for (int rank = 0; rank < size; ++rank) rows.push_back(values(rank, 2 * size));
      const at::Tensor all = torch::stack(rows);  // [rank, 2 * size]

      at::Tensor part = torch::empty({2});
      mean_scatter(*backend, part, values(group.rank(), 2 * size));
      EXPECT_TRUE(torch::equal(part, all.mean(0).view({size, 2})[group.rank()]));

      at::Tensor gathered = torch::empty({size * 2 * size});
      all_gather(*backend, gathered, values(group.rank(), 2 * size));
      EXPECT_TRUE(torch::equal(gathered.view_as(all), all));

      at::Tensor received = torch::empty({2 * size});
      all_to_all(*backend, received, values(group.rank(), 2 * size));
      EXPECT_TRUE(torch::equal(received.view({size, 2}), all.view({size, size, 2}).select(1, group.rank())));
    });
  }
}

}  // namespace
}  // namespace lockstep
