// Gradients of complex parameters over real groups, with ranks as threads.

#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/error.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include "support/config_error.h"
#include "support/formula.h"
#include "support/group_case.h"

namespace lockstep {
namespace {

using test::formula;
using test::GroupCase;
using test::same_bits;
using testing::HasSubstr;

at::Tensor complex_formula(at::IntArrayRef sizes, int64_t salt) {
  return torch::complex(formula(sizes, salt), formula(sizes, salt + 50));
}

// A complex matrix and a real one: two buckets.
struct ComplexNetImpl : torch::nn::Module {
  ComplexNetImpl() {
    mix = register_parameter("mix", complex_formula({3, 5}, 1));
    scale = register_parameter("scale", formula({5, 2}, 2));
  }
  at::Tensor loss(int rank) {
    return torch::matmul(torch::matmul(complex_formula({4, 3}, 100 + rank), mix).abs(), scale)
        .square()
        .mean();
  }
  at::Tensor mix;
  at::Tensor scale;
};

// As DDP: each rank's gradient times 1 / size, then the sum in rank order, part by part.
at::Tensor mean_of(int size, size_t index) {
  at::Tensor mean;
  for (int rank = 0; rank < size; ++rank) {
    ComplexNetImpl net;
    const at::Tensor gradient = torch::autograd::grad({net.loss(rank)}, net.parameters())[index];
    const at::Tensor parts = gradient.is_complex() ? torch::view_as_real(gradient.resolve_conj()) : gradient;
    const at::Tensor share = parts * (1.0 / size);
    mean = mean.defined() ? mean + share : share;
  }
  return mean;
}

class ComplexGradientsTest : public testing::TestWithParam<GroupCase> {};

TEST_P(ComplexGradientsTest, AreAveragedPartByPart) {
  test::run_group(GetParam(), [](Communicator& group) {
    const auto net = std::make_shared<ComplexNetImpl>();
    GradientSync sync(net, group);
    for (int step = 0; step < 2; ++step) {
      sync.zero_grad();
      sync.prepare_forward();
      net->loss(group.rank()).backward();
      ASSERT_EQ(net->mix.grad().scalar_type(), at::kComplexFloat);
      EXPECT_TRUE(same_bits(torch::view_as_real(net->mix.grad()), mean_of(group.size(), 0)));
      EXPECT_TRUE(same_bits(net->scale.grad(), mean_of(group.size(), 1)));
    }
  });
}

TEST_P(ComplexGradientsTest, TheNormIsOfAbsoluteValues) {
  test::run_group(GetParam(), [](Communicator& group) {
    const auto net = std::make_shared<ComplexNetImpl>();
    GradientSync sync(net, group);
    net->loss(group.rank()).backward();
    const at::Tensor before = net->mix.grad().clone();
    const double expected = std::sqrt(before.abs().square().sum().item<double>() +
                                      net->scale.grad().square().sum().item<double>());
    const double total = sync.clip_grad_norm(expected / 4).item<double>();
    EXPECT_NEAR(total, expected, 1e-6 * expected);
    EXPECT_TRUE(torch::allclose(net->mix.grad(), before * 0.25, 1e-4));
  });
}

TEST_P(ComplexGradientsTest, AreCompressedPartByPart) {
  test::run_group(GetParam(), [](Communicator& group) {
    const auto net = std::make_shared<ComplexNetImpl>();
    GradientSync sync(net, group, {.compression = GradientCompression::kBFloat16});
    net->loss(group.rank()).backward();
    at::Tensor sum = torch::zeros({3, 5, 2}, at::kBFloat16);
    for (int rank = 0; rank < group.size(); ++rank) {
      ComplexNetImpl alone;
      const at::Tensor own = torch::autograd::grad({alone.loss(rank)}, {alone.mix})[0].resolve_conj();
      sum += torch::view_as_real(own).to(at::kBFloat16).div_(group.size());
    }
    EXPECT_TRUE(torch::equal(torch::view_as_real(net->mix.grad()), sum.to(at::kFloat)));
  });
}

TEST_P(ComplexGradientsTest, AreNotSharded) {
  test::run_group(GetParam(), [](Communicator& group) {
    const auto net = std::make_shared<ComplexNetImpl>();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    for (const int stage : {1, 2, 3}) {
      EXPECT_THAT(
          test::error_of([&] { ShardedModel(net, sgd, group, {.zero = {.stage = stage}}); }),
          HasSubstr("complex parameters are not sharded, replicate the model with DataParallel: mix"));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, ComplexGradientsTest,
                         testing::Values(GroupCase{"gloo", {0}}, GroupCase{"gloo", {0, 0}},
                                         GroupCase{"shm", {0}}, GroupCase{"shm", {0, 0}}),
                         [](const auto& info) { return info.param.name(); });

TEST(ComplexGradients, TheScalerRefusesThem) {
  GradScaler scaler;
  EXPECT_THAT(test::error_of([&] { scaler.unscale({torch::ones({2}, at::kComplexFloat)}); }),
              HasSubstr("the gradient scaler is for real gradients, and one is complex"));
}

}  // namespace
}  // namespace lockstep
