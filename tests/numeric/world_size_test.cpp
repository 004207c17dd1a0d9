// The same global batch gives the same training, to rounding, whatever the number of
// ranks and however it is cut into micro batches.

#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <torch/torch.h>

#include "support/formula.h"
#include "support/group_case.h"

namespace lockstep::test {
namespace {

constexpr int64_t kGlobalBatch = 32;

// Parameters after ten steps of SGD with momentum, all ranks' batches together
// being kGlobalBatch rows.
std::vector<at::Tensor> train(int num_ranks, int micro_batches) {
  std::vector<at::Tensor> result;
  run_group({"gloo", std::vector<int>(static_cast<size_t>(num_ranks), 0)}, [&](Communicator& group) {
    torch::nn::Sequential net(torch::nn::Linear(6, 32), torch::nn::ReLU(), torch::nn::Linear(32, 32),
                              torch::nn::ReLU(), torch::nn::Linear(32, 4));
    net->to(torch::kDouble);
    set_parameters(*net);
    DataParallel model(net, group);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    const int64_t rows = kGlobalBatch / num_ranks / micro_batches;
    for (int step = 0; step < 10; ++step) {
      const auto x = formula({kGlobalBatch, 6}, 2 * step).to(torch::kDouble);
      const auto y = formula({kGlobalBatch, 4}, 2 * step + 1).to(torch::kDouble);
      model.zero_grad();
      for (int part = 0; part < micro_batches; ++part) {
        std::optional<GradientSync::NoSync> scope;
        if (part + 1 < micro_batches) scope.emplace(model.no_sync());
        const int64_t begin = (group.rank() * micro_batches + part) * rows;
        const auto output = model.forward(x.narrow(0, begin, rows));
        (torch::mse_loss(output, y.narrow(0, begin, rows)) / micro_batches).backward();
      }
      optimizer.step();
    }
    if (group.rank() == 0) result = net->parameters();
  });
  return result;
}

void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_LT((a[i] - b[i]).abs().max().item<double>(), 1e-14) << "parameter " << i;
  }
}

TEST(WorldSize, TwoAndFourRanksTrainLikeOne) {
  const auto alone = train(1, 1);
  expect_close(train(2, 1), alone);
  expect_close(train(4, 1), alone);
}

TEST(WorldSize, AccumulationTrainsLikeOneBatch) {
  const auto alone = train(1, 1);
  expect_close(train(1, 2), alone);
  expect_close(train(2, 2), alone);
  expect_close(train(2, 4), alone);
}

}  // namespace
}  // namespace lockstep::test
