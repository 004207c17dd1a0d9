// How ShardedModel makes means of gradients, measures them and steps by them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "support/block_net.h"
#include "support/config_error.h"
#include "support/group_case.h"

namespace lockstep {
namespace {

using test::BlockNet;
using test::formula;
using test::run_group;
using test::same_bits;

// A model of its own with the gradients of one backward, which differ from rank to rank.
struct Trained {
  Trained(Communicator& group, const ShardedOptions& options, double scale = 1)
      : optimizer(net->parameters(), torch::optim::SGDOptions(0.1)),
        model(net.ptr(), optimizer, group, options) {
    model.prepare_forward();
    (net->forward(formula({4, 3}, group.rank())).square().mean() * scale).backward();
  }

  std::vector<at::Tensor> weights() {
    const auto scope = model.gather_parameters();
    std::vector<at::Tensor> result;
    for (const at::Tensor& parameter : net->parameters()) result.push_back(parameter.detach().clone());
    return result;
  }

  BlockNet net;
  torch::optim::SGD optimizer;
  ShardedModel model;
};

class ShardedGradientsTest : public testing::TestWithParam<int> {
 protected:
  ShardedOptions options() const {
    return {.zero = {.stage = GetParam(), .bucket_cap_bytes = 300, .persistence_threshold = 9}};
  }
  void run(const std::function<void(Communicator&)>& body) { run_group({"shm", {0, 0, 0}}, body); }
};

TEST_P(ShardedGradientsTest, SumsAndDivisionsAfterTheSum) {
  run([&](Communicator& group) {
    Trained mean(group, options());
    ShardedOptions changed = options();
    changed.sum_gradients = true;
    Trained sum(group, changed);
    changed.sum_gradients = false;
    changed.divide_after_sum = true;
    Trained after(group, changed);
    for (size_t i = 0; i < mean.model.flat_gradients().size(); ++i) {
      const at::Tensor expected = mean.model.flat_gradients()[i];
      EXPECT_TRUE(torch::allclose(sum.model.flat_gradients()[i], expected * group.size(), 1e-5, 1e-8));
      EXPECT_TRUE(torch::allclose(after.model.flat_gradients()[i], expected, 1e-5, 1e-8));
    }
    changed.sum_gradients = true;
    changed.gradient_predivide_factor = 2;
    EXPECT_THAT(test::error_of([&] { Trained(group, changed); }), testing::HasSubstr("divides nothing"));
  });
}

TEST_P(ShardedGradientsTest, ReducesAllAtTheEndWhereAsked) {
  run([&](Communicator& group) {
    Trained plain(group, options());
    ShardedOptions changed = options();
    changed.zero.overlap = false;
    changed.zero.prefetch_limit = 100;
    Trained late(group, changed);
    for (size_t i = 0; i < plain.model.flat_gradients().size(); ++i) {
      EXPECT_TRUE(same_bits(late.model.flat_gradients()[i], plain.model.flat_gradients()[i]));
    }
  });
}

TEST_P(ShardedGradientsTest, AStepTimesAFactor) {
  run([&](Communicator& group) {
    Trained by_hand(group, options());
    for (const at::Tensor& gradient : by_hand.model.flat_gradients()) gradient.mul_(0.25);
    by_hand.model.step();
    Trained at_once(group, options());
    at_once.model.step(at::full({}, 0.25));
    const auto expected = by_hand.weights();
    const auto actual = at_once.weights();
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << i;
  });
}

TEST_P(ShardedGradientsTest, TheNormAloneChangesNothing) {
  run([&](Communicator& group) {
    Trained first(group, options());
    std::vector<at::Tensor> before;
    for (const at::Tensor& gradient : first.model.flat_gradients()) before.push_back(gradient.clone());
    const double norm = first.model.grad_norm().item<double>();
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(same_bits(first.model.flat_gradients()[i], before[i]));
    }
    EXPECT_EQ(first.model.clip_grad_norm(1e-3).item<double>(), norm);
    const double infinity = std::numeric_limits<double>::infinity();
    Trained broken(group, options(), group.rank() == 1 ? infinity : 1);
    EXPECT_FALSE(std::isfinite(broken.model.grad_norm().item<double>())) << "on every rank";
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, ShardedGradientsTest, testing::Values(0, 1, 2, 3));

TEST(ShardedPersistenceTest, SmallParametersAreWholeUpToALimit) {
  run_group({"shm", {0, 0}}, [](Communicator& group) {
    const auto whole_elements = [&](int64_t limit) {
      Trained trained(group,
                      {.zero = {.stage = 3, .persistence_threshold = 1000, .persistence_limit = limit}});
      trained.model.step();
      int64_t count = 0;
      for (const at::Tensor& parameter : trained.net->parameters()) count += parameter.numel();
      return count;
    };
    EXPECT_EQ(whole_elements(0), 0);
    const int64_t some = whole_elements(60);
    EXPECT_GT(some, 0);
    EXPECT_LE(some, 60);
    EXPECT_GT(whole_elements(std::numeric_limits<int64_t>::max()), 400);
  });
}

}  // namespace
}  // namespace lockstep
