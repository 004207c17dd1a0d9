#include "train/epoch_loss.h"

#include <lockstep/c10d.h>

#include <cmath>

#include "support/rank_threads.h"

namespace lockstep::train {
namespace {

TEST(EpochLossTest, WeighsBatchesBySamplesAndRanksBySums) {
  test::run_ranks(2, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    const Communicator communicator = make_communicator(std::move(store), rank, 2, {.backend = "gloo"});
    EpochLoss loss(torch::kCPU);
    // 30 samples of loss 1 and 10 of loss 5 on rank 0, 10 of loss 3 on rank 1.
    if (rank == 0) {
      loss.add(torch::tensor(1.0f), 30);
      loss.add(torch::tensor(5.0f), 10);
    } else {
      loss.add(torch::tensor(3.0f), 10);
    }
    EXPECT_DOUBLE_EQ(loss.own_mean(), rank == 0 ? 2.0 : 3.0);
    EXPECT_DOUBLE_EQ(loss.mean_over(communicator), 110.0 / 50.0);
    EXPECT_DOUBLE_EQ(loss.own_mean(), rank == 0 ? 2.0 : 3.0) << "reading changes nothing";
  });
}

TEST(EpochLossTest, NothingAddedIsNotANumber) {
  EXPECT_TRUE(std::isnan(EpochLoss(torch::kCPU).mean_over(Communicator())));
}

}  // namespace
}  // namespace lockstep::train
