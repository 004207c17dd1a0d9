// Small tensors of any dtypes and sizes reach all ranks in one broadcast.

#include "parallel/coalesced_broadcast.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/group_case.h"

namespace lockstep::parallel {
namespace {

TEST(CoalescedBroadcastTest, DtypesOfAllWidthsInAnyOrder) {
  const std::vector<at::ScalarType> dtypes = {at::kComplexDouble, at::kByte, at::kLong,  at::kHalf,
                                              at::kDouble,        at::kBool, at::kFloat, at::kComplexFloat};
  test::run_group({"shm", {0, 0}}, [&](Communicator& group) {
    const bool is_root = group.rank() == 1;
    std::vector<at::Tensor> tensors;
    for (size_t first = 0; first < dtypes.size(); ++first) {  // each after each other one
      for (size_t i = 0; i < dtypes.size(); ++i) {
        const at::ScalarType dtype = dtypes[(first + i * (first + 1)) % dtypes.size()];
        tensors.push_back(torch::full({3}, is_root ? 1 : 0, dtype));
        tensors.push_back(torch::full({}, is_root ? 1 : 0, dtype));
      }
    }
    broadcast_coalesced(tensors, group, 1);
    for (const at::Tensor& tensor : tensors) EXPECT_TRUE(at::equal(tensor, torch::ones_like(tensor)));
  });
}

TEST(CoalescedBroadcastTest, ConjugateViewsArriveAsTheirValues) {
  test::run_group({"shm", {0, 0}}, [](Communicator& group) {
    for (const int64_t size : {3, 1 << 17}) {
      const at::Tensor values =
          torch::full({size}, c10::complex<double>(group.rank(), 2), at::kComplexDouble);
      const at::Tensor view = values.conj();
      broadcast_coalesced({view}, group, 1);
      EXPECT_TRUE(at::equal(view.resolve_conj(), torch::full_like(values, c10::complex<double>(1, -2))));
    }
  });
}

}  // namespace
}  // namespace lockstep::parallel
