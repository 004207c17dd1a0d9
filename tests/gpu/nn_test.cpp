// The fused kernels against plain operations in float64.

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/models.h>
#include <lockstep/nn.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <vector>

#include "comm/plugin.h"
#include "nn/kernels.h"
#include "support/config_error.h"
#include "support/gpu.h"

namespace lockstep {
namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

double error_of(const at::Tensor& value, const at::Tensor& reference) {
  const at::Tensor expected = reference.to(at::kDouble);
  const double size = expected.norm().item<double>();
  const double distance = (value.to(at::kDouble) - expected).norm().item<double>();
  return size == 0 ? distance : distance / size;
}

// Of one rounding of each value.
double tolerance_of(at::ScalarType type) {
  return type == at::kBFloat16 ? 4e-3 : type == at::kHalf ? 6e-4 : 2e-6;
}

class GpuFusedTest : public test::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (HasFatalFailure()) return;
    torch::manual_seed(3);
    ASSERT_NE(nn::loaded_kernels(), nullptr) << "the plugin has no kernels, or LOCKSTEP_FUSED_KERNELS is 0";
  }

  at::Tensor images(at::IntArrayRef sizes, at::ScalarType type) const {
    return (torch::randn(sizes, device()) * 2 + 1).to(type).contiguous(kChannelsLast);
  }

  nn::BatchNormRelu norm_of(int64_t channels, double dropout = 0) const {
    nn::BatchNormRelu norm(nn::BatchNormReluOptions(channels).dropout(dropout));
    norm->to(device());
    const torch::NoGradGuard no_grad;
    norm->weight.uniform_(-1.5, 1.5);
    norm->bias.uniform_(-1, 1);
    return norm;
  }

  // Forward and backward of the layer against float64. The mask of dropout is read from the output.
  void compare(at::Tensor x, double dropout, bool with_shortcut, bool with_bias) {
    const at::ScalarType type = x.scalar_type();
    const int64_t channels = x.size(1);
    nn::BatchNormRelu norm = norm_of(channels, dropout);
    x = x.detach().requires_grad_();
    ASSERT_NE(nn::kernels_for(x), nullptr);
    at::Tensor shortcut, bias;
    if (with_shortcut) shortcut = images(x.sizes(), type).requires_grad_();
    if (with_bias) bias = torch::randn({channels}, device()).requires_grad_();
    const at::Tensor y = norm(x, shortcut, bias);
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_TRUE(y.is_contiguous(kChannelsLast));

    const auto exact = [](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.detach().to(at::kDouble).requires_grad_() : tensor;
    };
    const at::Tensor x64 = exact(x), weight64 = exact(norm->weight), norm_bias64 = exact(norm->bias);
    const at::Tensor shortcut64 = exact(shortcut), bias64 = exact(bias);
    const at::Tensor mean = x64.mean({0, 2, 3}, true);
    const at::Tensor variance = x64.var({0, 2, 3}, /*unbiased=*/false, true);
    const at::Tensor normalized = (x64 - mean) / torch::sqrt(variance + 1e-5) * weight64.view({1, -1, 1, 1}) +
                                  norm_bias64.view({1, -1, 1, 1});
    at::Tensor y64 = torch::relu(normalized);
    // Rounding decides the sign of values next to zero: they take no gradient here.
    const at::Tensor gradient = (torch::randn(x.sizes(), device()) * (normalized.abs() > 1e-4)).to(type);
    y.backward(gradient);
    if (dropout > 0) {
      ASSERT_FALSE(with_shortcut);
      const at::Tensor kept = y != 0;
      const double share = 1 - (kept.sum() / (y64 > 0).sum()).item<double>();
      EXPECT_NEAR(share, dropout, 5 / std::sqrt(static_cast<double>(x.numel()))) << "of positive values";
      y64 = y64 * kept / (1 - std::round(dropout * 65536) / 65536);
    }
    if (with_shortcut) y64 = y64 + shortcut64;
    if (with_bias) y64 = y64 + bias64.view({1, -1, 1, 1});
    y64.backward(gradient.to(at::kDouble));

    const double tolerance = tolerance_of(type);
    EXPECT_LT(error_of(y, y64), tolerance) << "output";
    EXPECT_LT(error_of(x.grad(), x64.grad()), 2 * tolerance) << "gradient of the input";
    // Sums in float32.
    EXPECT_LT(error_of(norm->weight.grad(), weight64.grad()), 1e-4);
    EXPECT_LT(error_of(norm->bias.grad(), norm_bias64.grad()), 1e-4);
    if (with_shortcut) EXPECT_TRUE(torch::equal(shortcut.grad(), gradient));
    if (with_bias) EXPECT_LT(error_of(bias.grad(), bias64.grad()), 1e-4);
    const auto count = static_cast<double>(x.numel() / channels);
    EXPECT_LT(error_of(norm->running_mean, mean.flatten() * 0.1), 1e-5);
    EXPECT_LT(error_of(norm->running_var, variance.flatten() * (0.1 * count / (count - 1)) + 0.9), 1e-5);
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
  }
};

constexpr std::array kTypes{at::kFloat, at::kHalf, at::kBFloat16};

TEST_F(GpuFusedTest, BatchNormReluEqualsFloat64) {
  const std::vector<std::vector<int64_t>> shapes{{2, 8, 4, 4},      {3, 16, 5, 7},     {2, 7, 3, 3},
                                                 {1, 160, 32, 32},  {64, 640, 8, 8},   {5, 12, 3, 2},
                                                 {32, 320, 16, 16}, {33, 320, 16, 16}, {2, 641, 3, 5},
                                                 {4, 24, 1, 2},     {1000, 16, 9, 9},  {2, 2, 300, 400}};
  for (const at::ScalarType type : kTypes) {
    for (const auto& shape : shapes) {
      for (const auto& [dropout, shortcut, bias] :
           {std::tuple(0.0, false, false), {0.0, true, false}, {0.0, true, true}, {0.25, false, false}}) {
        SCOPED_TRACE(fmt::format("{} [{}] dropout {} shortcut {} bias {}", c10::toString(type),
                                 fmt::join(shape, ", "), dropout, shortcut, bias));
        compare(images(shape, type), dropout, shortcut, bias);
      }
    }
  }
}

TEST_F(GpuFusedTest, BatchNormReluInEvaluationEqualsFloat64) {
  for (const at::ScalarType type : kTypes) {
    for (const std::vector<int64_t>& sizes :
         std::vector<std::vector<int64_t>>{{5, 12, 7, 3}, {1, 3, 2, 2}, {64, 160, 8, 8}}) {
      for (const bool with_shortcut : {false, true}) {
        SCOPED_TRACE(
            fmt::format("{} [{}] shortcut {}", c10::toString(type), fmt::join(sizes, ", "), with_shortcut));
        nn::BatchNormRelu norm = norm_of(sizes[1], 0.5);
        norm->eval();
        const torch::NoGradGuard no_grad;
        norm->running_mean.normal_();
        norm->running_var.uniform_(0.5, 2);
        const at::Tensor x = images(sizes, type);
        const at::Tensor shortcut = with_shortcut ? images(sizes, type) : at::Tensor();
        const at::Tensor bias = with_shortcut ? torch::randn({sizes[1]}, device()) : at::Tensor();
        const at::Tensor y = norm(x, shortcut, bias);
        const auto of_channel = [](const at::Tensor& t) { return t.to(at::kDouble).view({1, -1, 1, 1}); };
        at::Tensor y64 =
            torch::relu((x.to(at::kDouble) - of_channel(norm->running_mean)) /
                            torch::sqrt(of_channel(norm->running_var) + 1e-5) * of_channel(norm->weight) +
                        of_channel(norm->bias));
        if (with_shortcut) y64 = y64 + shortcut.to(at::kDouble) + of_channel(bias);
        EXPECT_EQ(y.scalar_type(), type);
        EXPECT_LT(error_of(y, y64), tolerance_of(type));
      }
    }
  }
}

TEST_F(GpuFusedTest, BatchNormReluInEvaluationHasGradientsIfNeeded) {
  nn::BatchNormRelu norm = norm_of(8);
  norm->eval();
  const at::Tensor x = images({2, 8, 3, 3}, at::kFloat).requires_grad_();
  norm(x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_TRUE(norm->weight.grad().defined());
}

TEST_F(GpuFusedTest, InputsThatAreNotContiguous) {
  for (const at::ScalarType type : kTypes) {
    SCOPED_TRACE(c10::toString(type));
    compare(images({8, 16, 6, 6}, type).slice(0, 0, 8, 2), 0, true, true);
    compare(images({4, 32, 6, 6}, type).slice(1, 0, 16), 0, true, false);
    compare(images({4, 16, 9, 6}, type).slice(2, 1, 8), 0, false, false);
    // Not at a multiple of 16 bytes.
    const at::Tensor flat = images({1, 1, 1, 4 * 16 * 25 + 1}, type).flatten();
    compare(flat.slice(0, 1).view({4, 5, 5, 16}).permute({0, 3, 1, 2}), 0, true, false);
  }
}

TEST_F(GpuFusedTest, OtherLayoutsAndEmptyBatchesRunPlainOperations) {
  nn::BatchNormRelu norm = norm_of(8);
  const at::Tensor x = torch::randn({2, 8, 4, 4}, device());
  EXPECT_EQ(nn::kernels_for(x), nullptr);
  EXPECT_LT(error_of(norm(x), norm(x.contiguous(kChannelsLast))), 1e-6);
  at::Tensor none = torch::randn({0, 8, 4, 4}, device()).contiguous(kChannelsLast).requires_grad_();
  const at::Tensor y = norm(none);
  EXPECT_EQ(y.sizes(), none.sizes());
  y.sum().backward();
  EXPECT_EQ(none.grad().sizes(), none.sizes());
  EXPECT_EQ(nn::max_pool_2x2(none).size(0), 0);
  EXPECT_THROW(norm(torch::randn({1, 8, 1, 1}, device())), c10::Error) << "one value has no variance";
}

// A sum of squares would have no digits left.
TEST_F(GpuFusedTest, ALargeMeanDoesNotCancel) {
  const at::Tensor x = (torch::randn({16, 32, 8, 8}, device()) + 3000).contiguous(kChannelsLast);
  nn::BatchNormRelu norm(nn::BatchNormReluOptions(32));
  norm->to(device());
  const at::Tensor x64 = x.to(at::kDouble);
  const at::Tensor expected =
      torch::relu((x64 - x64.mean({0, 2, 3}, true)) / torch::sqrt(x64.var({0, 2, 3}, false, true) + 1e-5));
  EXPECT_LT(error_of(norm(x), expected), 1e-3);
}

TEST_F(GpuFusedTest, ResultsAreTheSameEveryTime) {
  const at::Tensor x = images({64, 160, 16, 16}, at::kBFloat16).requires_grad_();
  const at::Tensor gradient = images(x.sizes(), at::kBFloat16);
  nn::BatchNormRelu norm = norm_of(160, 0.1);
  std::vector<at::Tensor> first;
  for (int i = 0; i < 5; ++i) {
    torch::manual_seed(11);
    norm->zero_grad();
    x.mutable_grad().reset();
    const at::Tensor y = norm(x);
    y.backward(gradient);
    const std::vector<at::Tensor> values{y, x.grad(), norm->weight.grad().clone(), norm->bias.grad().clone()};
    if (first.empty()) first = values;
    for (size_t v = 0; v < values.size(); ++v) EXPECT_TRUE(torch::equal(values[v], first[v])) << v;
  }
}

TEST_F(GpuFusedTest, DropoutDrawsANewMaskEveryTimeAlsoInAReplay) {
  comm::use_own_cuda_stream(device().index());
  nn::BatchNormRelu norm = norm_of(16, 0.5);
  const at::Tensor x = images({8, 16, 8, 8}, at::kFloat);
  const at::Tensor first = norm(x), second = norm(x);
  EXPECT_FALSE(torch::equal(first, second));
  auto graph = comm::make_cuda_graph();
  at::Tensor y;
  graph->record([&] { y = norm(x); });
  graph->replay();
  const at::Tensor third = y.clone();
  graph->replay();
  EXPECT_FALSE(torch::equal(third, y)) << "a replay draws the mask of the one before";
  const double share = ((y != 0).sum() / (third != 0).sum()).item<double>();
  EXPECT_NEAR(share, 1, 0.1);
}

TEST_F(GpuFusedTest, MasksAreIndependentOfPosition) {
  nn::BatchNormRelu norm(nn::BatchNormReluOptions(64).dropout(0.5));
  norm->to(device());
  {
    const torch::NoGradGuard no_grad;
    norm->bias.fill_(100);  // ReLU keeps all
  }
  const at::Tensor x = images({16, 64, 32, 32}, at::kFloat);
  const auto mask = [&] {
    return ((norm(x) != 0).to(at::kDouble) - 0.5).permute({0, 2, 3, 1}).flatten() * 2;  // -1 or 1
  };
  const at::Tensor one = mask(), other = mask();
  const int64_t count = one.numel();
  const double bound = 5 / std::sqrt(static_cast<double>(count));
  EXPECT_NEAR(one.mean().item<double>(), 0, bound);
  EXPECT_NEAR((one * other).mean().item<double>(), 0, bound) << "of two calls";
  for (const int64_t distance : {1, 2, 3, 8, 64, 2048, 65536}) {
    const at::Tensor product = one.slice(0, 0, count - distance) * one.slice(0, distance);
    EXPECT_NEAR(product.mean().item<double>(), 0, bound) << distance;
  }
}

TEST_F(GpuFusedTest, ASecondDerivativeIsRefused) {
  nn::BatchNormRelu norm = norm_of(8);
  const at::Tensor x = images({2, 8, 4, 4}, at::kFloat).requires_grad_();
  EXPECT_THAT(test::error_of([&] {
                torch::autograd::grad({norm(x).sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
              }),
              testing::HasSubstr("have no second derivative"));
}

TEST_F(GpuFusedTest, MaxPoolEqualsLibTorchsBitForBit) {
  for (const at::ScalarType type : kTypes) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{2, 16, 4, 4}, {3, 160, 9, 7}, {5, 7, 5, 6}, {1, 8, 2, 3}}) {
      SCOPED_TRACE(fmt::format("{} [{}]", c10::toString(type), fmt::join(shape, ", ")));
      at::Tensor x = images(shape, type);
      x.index_put_({0, 0, 0, 1}, std::nan(""));
      x = torch::round(x).requires_grad_();  // with ties
      at::Tensor plain = x.detach().clone(kChannelsLast).requires_grad_();
      const at::Tensor y = nn::max_pool_2x2(x), expected = torch::max_pool2d(plain, 2);
      EXPECT_TRUE(torch::allclose(y, expected, 0, 0, /*equal_nan=*/true));
      const at::Tensor gradient = torch::randn(y.sizes(), device()).to(type);
      y.backward(gradient);
      expected.backward(gradient);
      EXPECT_TRUE(torch::equal(x.grad(), plain.grad()));
    }
  }
}

TEST_F(GpuFusedTest, AvgPoolEqualsFloat64) {
  for (const at::ScalarType type : kTypes) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{2, 640, 8, 8}, {3, 7, 9, 7}, {5, 16, 13, 12}}) {
      SCOPED_TRACE(fmt::format("{} [{}]", c10::toString(type), fmt::join(shape, ", ")));
      const at::Tensor x = images(shape, type).requires_grad_();
      const at::Tensor exact = x.detach().to(at::kDouble).requires_grad_();
      const at::Tensor y = nn::avg_pool(x, 7), expected = torch::avg_pool2d(exact, 7);
      EXPECT_LT(error_of(y, expected), tolerance_of(type));
      const at::Tensor gradient = torch::randn(y.sizes(), device()).to(type);
      y.backward(gradient);
      expected.backward(gradient.to(at::kDouble));
      EXPECT_LT(error_of(x.grad(), exact.grad()), tolerance_of(type));
    }
  }
}

TEST_F(GpuFusedTest, LayerNormEqualsFloat64) {
  struct Types {
    at::ScalarType input, output;
  };
  for (const Types types : {Types{at::kFloat, at::kFloat},
                            {at::kHalf, at::kHalf},
                            {at::kBFloat16, at::kBFloat16},
                            {at::kFloat, at::kHalf},
                            {at::kFloat, at::kBFloat16}}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{64, 197, 768}, {3, 5, 8}, {1, 264}, {1001, 1600}, {7, 776}, {2, 3, 1792}}) {
      for (const bool with_branch : {false, true}) {
        for (const bool uses_sum : {false, true}) {
          if (uses_sum && !with_branch) continue;
          SCOPED_TRACE(fmt::format("{} to {} [{}] branch {} sum {}", c10::toString(types.input),
                                   c10::toString(types.output), fmt::join(shape, ", "), with_branch,
                                   uses_sum));
          const int64_t size = shape.back();
          nn::LayerNorm norm(torch::nn::LayerNormOptions({size}).eps(1e-6));
          norm->to(device());
          {
            const torch::NoGradGuard no_grad;
            norm->weight.uniform_(-1.5, 1.5);
            norm->bias.uniform_(-1, 1);
          }
          const at::Tensor x = (torch::randn(shape, device()) * 2 + 1).to(types.input).requires_grad_();
          const at::Tensor branch = torch::randn(shape, device()).to(types.output).requires_grad_();
          at::Tensor y, sum;
          {
            const bool was_enabled = at::autocast::is_autocast_enabled(at::kCUDA);
            at::autocast::set_autocast_enabled(at::kCUDA, types.input != types.output);
            at::autocast::set_autocast_dtype(at::kCUDA, types.output);
            if (with_branch) {
              const auto both = norm->add(x, branch);
              y = both.normalized, sum = both.sum;
            } else {
              y = norm(x);
            }
            at::autocast::set_autocast_enabled(at::kCUDA, was_enabled);
          }
          ASSERT_EQ(y.scalar_type(), types.output) << "the plain operation ran";
          const auto exact = [](const at::Tensor& tensor) {
            return tensor.detach().to(at::kDouble).requires_grad_();
          };
          const at::Tensor x64 = exact(x), branch64 = exact(branch), weight64 = exact(norm->weight);
          const at::Tensor bias64 = exact(norm->bias);
          const at::Tensor sum64 = with_branch ? x64 + branch64 : x64;
          const at::Tensor y64 = torch::layer_norm(sum64, {size}, weight64, bias64, 1e-6);
          const at::Tensor gradient = torch::randn(shape, device()).to(types.output);
          const at::Tensor sum_gradient = torch::randn(shape, device()).to(types.input);
          if (uses_sum) {
            torch::autograd::backward({y, sum}, {gradient, sum_gradient});
            torch::autograd::backward({y64, sum64}, {gradient.to(at::kDouble), sum_gradient.to(at::kDouble)});
          } else {
            y.backward(gradient);
            y64.backward(gradient.to(at::kDouble));
          }
          const double tolerance = std::max(tolerance_of(types.input), tolerance_of(types.output));
          // The kernel normalises the rounded sum.
          EXPECT_LT(error_of(y, y64), 2 * tolerance);
          if (with_branch) EXPECT_LT(error_of(sum, sum64), tolerance_of(types.input));
          EXPECT_LT(error_of(x.grad(), x64.grad()), 2 * tolerance);
          if (with_branch) EXPECT_LT(error_of(branch.grad(), branch64.grad()), 2 * tolerance);
          EXPECT_LT(error_of(norm->weight.grad(), weight64.grad()), 2 * tolerance);
          EXPECT_LT(error_of(norm->bias.grad(), bias64.grad()), 1e-5);
        }
      }
    }
  }
}

TEST_F(GpuFusedTest, OnlyTheSumOfALayerNorm) {
  nn::LayerNorm norm(torch::nn::LayerNormOptions({64}));
  norm->to(device());
  const at::Tensor x = torch::randn({4, 64}, device()).requires_grad_();
  const at::Tensor branch = torch::randn({4, 64}, device()).requires_grad_();
  const at::Tensor gradient = torch::randn({4, 64}, device());
  norm->add(x, branch).sum.backward(gradient);
  EXPECT_TRUE(torch::equal(x.grad(), gradient));
  EXPECT_TRUE(torch::equal(branch.grad(), gradient));
}

TEST_F(GpuFusedTest, AttentionEqualsFloat64) {
  for (const at::ScalarType type : kTypes) {
    for (const bool is_causal : {false, true}) {
      SCOPED_TRACE(fmt::format("{} causal {}", c10::toString(type), is_causal));
      std::vector<at::Tensor> parts, exact;
      for (int i = 0; i < 3; ++i) {
        parts.push_back(torch::randn({2, 3, 77, 64}, device()).to(type).requires_grad_());
        exact.push_back(parts.back().detach().to(at::kDouble).requires_grad_());
      }
      const at::Tensor y = nn::attention(parts[0], parts[1], parts[2], {.is_causal = is_causal});
      at::Tensor scores = exact[0].matmul(exact[1].transpose(-1, -2)) / 8;
      if (is_causal) scores = scores + torch::full({77, 77}, -INFINITY, scores.options()).triu(1);
      const at::Tensor y64 = torch::softmax(scores, -1).matmul(exact[2]);
      const at::Tensor gradient = torch::randn(y.sizes(), device()).to(type);
      y.backward(gradient);
      y64.backward(gradient.to(at::kDouble));
      const double tolerance = type == at::kFloat ? 2e-3 : 3 * tolerance_of(type);  // TF32 in float32
      EXPECT_LT(error_of(y, y64), tolerance);
      for (int i = 0; i < 3; ++i) EXPECT_LT(error_of(parts[i].grad(), exact[i].grad()), 2 * tolerance) << i;
    }
  }
}

TEST_F(GpuFusedTest, LinearCrossEntropyEqualsFloat64) {
  struct Shape {
    int64_t rows, size, classes, chunk;
  };
  for (const at::ScalarType type : kTypes) {
    for (const Shape& shape :
         {Shape{100, 64, 1000, 32}, {77, 48, 1003, 1000}, {5, 8, 2, 1}, {300, 128, 50304, 128}}) {
      SCOPED_TRACE(fmt::format("{} rows {} classes {}", c10::toString(type), shape.rows, shape.classes));
      const at::Tensor hidden = torch::randn({shape.rows, shape.size}, device()).to(type).requires_grad_();
      const at::Tensor weight =
          (torch::randn({shape.classes, shape.size}, device()) / 4).to(type).requires_grad_();
      at::Tensor targets =
          torch::randint(shape.classes, {shape.rows}, torch::TensorOptions(device()).dtype(at::kLong));
      targets[1] = -100;
      const at::Tensor loss = nn::linear_cross_entropy(hidden, weight, targets, {.chunk_rows = shape.chunk});
      const at::Tensor hidden64 = hidden.detach().to(at::kDouble).requires_grad_();
      const at::Tensor weight64 = weight.detach().to(at::kDouble).requires_grad_();
      const at::Tensor loss64 = torch::cross_entropy_loss(hidden64.matmul(weight64.t()), targets);
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      const double tolerance = type == at::kFloat ? 2e-3 : 3 * tolerance_of(type);  // TF32 in float32
      EXPECT_LT(error_of(loss, loss64), tolerance);
      {
        const torch::NoGradGuard no_grad;
        EXPECT_LT(error_of(nn::linear_cross_entropy(hidden, weight, targets), loss64), tolerance);
      }
      (loss * 2).backward();
      (loss64 * 2).backward();
      EXPECT_LT(error_of(hidden.grad(), hidden64.grad()), 2 * tolerance);
      EXPECT_LT(error_of(weight.grad(), weight64.grad()), 2 * tolerance);
    }
  }
}

TEST_F(GpuFusedTest, GeluMlpEqualsFloat64) {
  struct Shape {
    std::vector<int64_t> input;
    int64_t hidden, outputs;
  };
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    for (const bool by_autocast : {false, true}) {
      for (const Shape& shape : {Shape{{100, 64}, 256, 64},
                                 {{7, 8}, 16, 24},
                                 {{3, 5, 768}, 3072, 768},
                                 {{1, 16}, 8, 8},
                                 {{6, 12}, 20, 10}}) {  // not multiples of 8: plain operations
        SCOPED_TRACE(fmt::format("{} [{}] {} autocast {}", c10::toString(type), fmt::join(shape.input, ", "),
                                 shape.hidden, by_autocast));
        const int64_t inputs = shape.input.back();
        const at::ScalarType stored = by_autocast ? at::kFloat : type;
        const auto made = [&](at::IntArrayRef sizes, double scale) {
          return (torch::randn(sizes, device()) * scale).to(stored).requires_grad_();
        };
        const double of_in = 1 / std::sqrt(static_cast<double>(inputs));
        const double of_out = 1 / std::sqrt(static_cast<double>(shape.hidden));
        const std::vector<at::Tensor> leaves = {
            made(shape.input, 1), made({shape.hidden, inputs}, of_in), made({shape.hidden}, 0.5),
            made({shape.outputs, shape.hidden}, of_out), made({shape.outputs}, 0.5)};
        std::vector<at::Tensor> exact;
        for (const at::Tensor& leaf : leaves) {
          exact.push_back(leaf.detach().to(type).to(at::kDouble).requires_grad_());
        }
        at::Tensor y;
        {
          const Autocast autocast(by_autocast ? type : at::kFloat, at::kCUDA);
          y = nn::gelu_mlp(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4]);
        }
        const at::Tensor y64 = torch::linear(torch::gelu(torch::linear(exact[0], exact[1], exact[2]), "tanh"),
                                             exact[3], exact[4]);
        EXPECT_EQ(y.scalar_type(), type);
        EXPECT_EQ(y.sizes(), y64.sizes());
        const double tolerance = 3 * tolerance_of(type);
        EXPECT_LT(error_of(y, y64), tolerance);
        const at::Tensor gradient = torch::randn_like(y);
        y.backward(gradient);
        y64.backward(gradient.to(at::kDouble));
        for (size_t i = 0; i < leaves.size(); ++i) {
          EXPECT_EQ(leaves[i].grad().scalar_type(), stored) << i;
          EXPECT_LT(error_of(leaves[i].grad(), exact[i].grad()), 2 * tolerance) << "gradient " << i;
        }
      }
    }
  }
}

TEST_F(GpuFusedTest, LinearEqualsFloat64) {
  struct Shape {
    std::vector<int64_t> input;
    int64_t outputs;
  };
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    for (const bool by_autocast : {false, true}) {
      for (const Shape& shape :
           {Shape{{100, 64}, 256}, {{3, 5, 768}, 2304}, {{9000, 24}, 7}, {{1, 3}, 5}, {{4097, 16}, 512}}) {
        SCOPED_TRACE(fmt::format("{} [{}] {} autocast {}", c10::toString(type), fmt::join(shape.input, ", "),
                                 shape.outputs, by_autocast));
        const int64_t inputs = shape.input.back();
        const at::ScalarType stored = by_autocast ? at::kFloat : type;
        const auto made = [&](at::IntArrayRef sizes) {
          return (torch::randn(sizes, device()) / std::sqrt(static_cast<double>(inputs)))
              .to(stored)
              .requires_grad_();
        };
        const std::vector<at::Tensor> leaves = {made(shape.input), made({shape.outputs, inputs}),
                                                made({shape.outputs})};
        std::vector<at::Tensor> exact;
        for (const at::Tensor& leaf : leaves) {
          exact.push_back(leaf.detach().to(type).to(at::kDouble).requires_grad_());
        }
        at::Tensor y;
        {
          const Autocast autocast(by_autocast ? type : at::kFloat, at::kCUDA);
          y = nn::linear(leaves[0], leaves[1], leaves[2]);
        }
        const at::Tensor y64 = torch::linear(exact[0], exact[1], exact[2]);
        const double tolerance = 2 * tolerance_of(type);
        EXPECT_EQ(y.scalar_type(), type);
        EXPECT_LT(error_of(y, y64), tolerance);
        const at::Tensor gradient = torch::randn_like(y);
        y.backward(gradient);
        y64.backward(gradient.to(at::kDouble));
        for (size_t i = 0; i < leaves.size(); ++i) {
          EXPECT_EQ(leaves[i].grad().scalar_type(), stored) << i;
          // Sums in float32, of which only 16-bit parameters round the result.
          const double of_sum = by_autocast && i > 0 ? 1e-4 : tolerance;
          EXPECT_LT(error_of(leaves[i].grad(), exact[i].grad()), of_sum) << "gradient " << i;
        }
      }
    }
  }
}

TEST_F(GpuFusedTest, GeluMlpTakesAnyLayoutAndNoRows) {
  const auto made = [&](at::IntArrayRef sizes) {
    return torch::randn(sizes, device()).to(at::kBFloat16) / 4;
  };
  const at::Tensor in = made({32, 16}), in_bias = made({32}), out = made({16, 32}), out_bias = made({16});
  const at::Tensor x = made({16, 24}).t();
  const at::Tensor transposed = nn::gelu_mlp(x, in.t().contiguous().t(), in_bias, out, out_bias);
  EXPECT_TRUE(transposed.equal(nn::gelu_mlp(x.contiguous(), in, in_bias, out, out_bias)));
  EXPECT_EQ(nn::gelu_mlp(made({0, 16}), in, in_bias, out, out_bias).sizes(), at::IntArrayRef({0, 16}));
}

// The same values, contiguous, at an address that is no multiple of 16 bytes.
at::Tensor shifted(const at::Tensor& tensor, int64_t elements = 1) {
  const at::Tensor memory = at::empty({tensor.numel() + elements}, tensor.options());
  const at::Tensor result = memory.slice(0, elements).view(tensor.sizes());
  result.copy_(tensor);
  return result;
}

// The same values, with another value after each.
at::Tensor strided(const at::Tensor& tensor) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.push_back(2);
  const at::Tensor result = at::full(sizes, 7, tensor.options()).select(-1, 0);
  result.copy_(tensor);
  return result;
}

TEST_F(GpuFusedTest, RunOnThisGpu) {
  EXPECT_GE(nn::compute_capability(device()), 80);
  EXPECT_EQ(nn::kernels_on(device()), nn::loaded_kernels());
  EXPECT_EQ(nn::kernels_on(at::kCPU), nullptr);
}

TEST_F(GpuFusedTest, BatchNormReluTakesAnyGradientAndBias) {
  for (const at::ScalarType type : kTypes) {
    SCOPED_TRACE(c10::toString(type));
    nn::BatchNormRelu norm = norm_of(16);
    const at::Tensor x = images({4, 16, 5, 5}, type).requires_grad_();
    const at::Tensor shortcut = images({4, 16, 5, 5}, type);
    const at::Tensor bias = torch::randn({16}, device());
    const at::Tensor gradient = images({4, 16, 5, 5}, type);
    const auto results = [&](const at::Tensor& its_bias, const at::Tensor& its_gradient) {
      const at::Tensor y = norm(x, shortcut, its_bias);
      return std::vector{y.detach(), torch::autograd::grad({y}, {x}, {its_gradient})[0]};
    };
    const auto expected = results(bias, gradient);
    const at::Tensor pixels = gradient.permute({0, 2, 3, 1});
    for (const at::Tensor& its_gradient :
         {gradient.contiguous(), strided(gradient), shifted(pixels).permute({0, 3, 1, 2})}) {
      const auto values = results(shifted(bias), its_gradient);
      EXPECT_LT(error_of(values[0], expected[0]), tolerance_of(type));
      EXPECT_LT(error_of(values[1], expected[1]), tolerance_of(type));
    }
  }
}

TEST_F(GpuFusedTest, BatchNormReluComputesOnlyTheGradientsOfParameters) {
  nn::BatchNormRelu norm = norm_of(16);
  const at::Tensor x = images({4, 16, 5, 5}, at::kFloat), gradient = images({4, 16, 5, 5}, at::kFloat);
  norm(x).backward(gradient);
  const at::Tensor weight = norm->weight.grad().clone(), bias = norm->bias.grad().clone();
  norm->zero_grad();
  norm(x.detach().requires_grad_()).backward(gradient);
  EXPECT_TRUE(torch::equal(norm->weight.grad(), weight));
  EXPECT_TRUE(torch::equal(norm->bias.grad(), bias));
}

TEST_F(GpuFusedTest, OtherDevicesAreLeftToLibTorch) {
  nn::LayerNorm on_cpu(torch::nn::LayerNormOptions({64}));
  const at::Tensor x = torch::randn({4, 64}, device());
  EXPECT_THROW(on_cpu(x), c10::Error);
  nn::LayerNorm norm(torch::nn::LayerNormOptions({64}));
  norm->to(device());
  EXPECT_THROW(norm->add(x, x.cpu()), c10::Error) << "the branch";
  nn::BatchNormRelu batch_norm = norm_of(8);
  const at::Tensor y = images({2, 8, 4, 4}, at::kFloat);
  EXPECT_THROW(batch_norm(y, y.cpu()), c10::Error) << "the shortcut";
  const at::Tensor row = x.to(at::kHalf), weight = torch::randn({8, 64}, device()).to(at::kHalf);
  const at::Tensor bias = torch::randn({8}, device()).to(at::kHalf);
  EXPECT_THROW(nn::linear(row, weight.cpu(), bias), c10::Error);
  EXPECT_THROW(nn::linear(row, weight.to(at::kFloat), bias.to(at::kFloat)), c10::Error) << "another type";
  EXPECT_THROW(nn::gelu_mlp(row, weight, bias.cpu(), weight.t(), x[0].to(at::kHalf)), c10::Error);
  const at::Tensor targets = torch::randint(8, {4});
  EXPECT_THROW(nn::linear_cross_entropy(row, weight, targets), c10::Error);
  EXPECT_THROW(nn::linear_cross_entropy(row, weight.cpu(), targets.to(device())), c10::Error);
}

TEST_F(GpuFusedTest, LayerNormTakesAnyLayout) {
  for (const at::ScalarType type : kTypes) {
    SCOPED_TRACE(c10::toString(type));
    nn::LayerNorm norm(torch::nn::LayerNormOptions({64}));
    norm->to(device());
    const at::Tensor x = torch::randn({6, 64}, device()).to(type).requires_grad_();
    const at::Tensor branch = torch::randn({6, 64}, device()).to(type).requires_grad_();
    const at::Tensor gradient = torch::randn({6, 64}, device()).to(type);
    const at::Tensor sum_gradient = torch::randn({6, 64}, device()).to(type);
    const auto results = [&](const at::Tensor& of_output, const at::Tensor& of_sum) {
      const auto both = norm->add(x, branch);
      return torch::autograd::grad({both.normalized, both.sum}, {x, branch, norm->weight, norm->bias},
                                   {of_output, of_sum});
    };
    const auto expected = results(gradient, sum_gradient);
    for (const auto& changed : {std::function<at::Tensor(const at::Tensor&)>(strided),
                                {[](const at::Tensor& t) { return shifted(t); }},
                                {[](const at::Tensor& t) { return t.t().contiguous().t(); }}}) {
      const auto values = results(changed(gradient), changed(sum_gradient));
      for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(torch::equal(values[i], expected[i])) << i;
      // LibTorch's operations run, which take parameters of the type of the input.
      nn::LayerNorm plain(torch::nn::LayerNormOptions({64}));
      plain->to(device(), type);
      const at::Tensor exact = torch::layer_norm(x.detach().to(at::kDouble), {64});
      EXPECT_LT(error_of(plain(changed(x.detach())), exact), 2 * tolerance_of(type));
    }
  }
  nn::LayerNorm norm(torch::nn::LayerNormOptions({64}));
  norm->to(device());
  const at::Tensor none = torch::randn({0, 64}, device()).requires_grad_();
  const auto both = norm->add(none, none);
  EXPECT_EQ(both.normalized.sizes(), none.sizes());
  both.normalized.sum().backward();
  EXPECT_EQ(none.grad().sizes(), none.sizes());
  EXPECT_EQ(norm->weight.grad().norm().item<double>(), 0);
}

TEST_F(GpuFusedTest, ALayerNormsSumThatNobodyUsesHasNoGradient) {
  nn::LayerNorm norm(torch::nn::LayerNormOptions({64}));
  norm->to(device());
  const at::Tensor x = torch::randn({4, 64}, device()).requires_grad_();
  const at::Tensor branch = torch::randn({4, 64}, device()).requires_grad_();
  const at::Tensor gradient = torch::randn({4, 64}, device());
  const auto results = [&](bool with_zeros) {
    const auto both = norm->add(x, branch);
    if (!with_zeros) return torch::autograd::grad({both.normalized}, {x, branch}, {gradient});
    return torch::autograd::grad({both.normalized, both.sum}, {x, branch},
                                 {gradient, torch::zeros_like(gradient)});
  };
  const auto values = results(false), expected = results(true);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(torch::equal(values[i], expected[i])) << i;
}

TEST_F(GpuFusedTest, AttentionWithDropout) {
  constexpr double kDropout = 0.25;
  for (const at::ScalarType type : kTypes) {
    SCOPED_TRACE(c10::toString(type));
    const at::Tensor q = torch::randn({2, 3, 64, 64}, device()).to(type);
    const at::Tensor k = torch::randn({2, 3, 64, 64}, device()).to(type);
    // With the identity as values, the result is the weights themselves.
    const at::Tensor v = torch::eye(64, device()).to(type).expand({2, 3, 64, 64}).contiguous();
    v.requires_grad_();
    const at::Tensor y = nn::attention(q, k, v, {.dropout = kDropout});
    const at::Tensor weights =
        torch::softmax(q.to(at::kDouble).matmul(k.to(at::kDouble).transpose(-1, -2)) / 8, -1);
    const at::Tensor kept = y != 0;
    EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 1 - kDropout,
                5 / std::sqrt(static_cast<double>(y.numel())));
    const double tolerance = type == at::kFloat ? 2e-3 : 3 * tolerance_of(type);  // TF32 in float32
    EXPECT_LT(error_of(y, weights * kept / (1 - kDropout)), tolerance);
    const at::Tensor gradient = torch::randn(y.sizes(), device()).to(type);
    y.backward(gradient);
    const at::Tensor exact = y.detach().to(at::kDouble).transpose(-1, -2).matmul(gradient.to(at::kDouble));
    EXPECT_LT(error_of(v.grad(), exact), 2 * tolerance) << "another mask in backward";
    EXPECT_FALSE(torch::equal(y, nn::attention(q, k, v, {.dropout = kDropout}))) << "the same mask again";
  }
}

TEST_F(GpuFusedTest, LinearCrossEntropyTakesAnyTargetsAndHidden) {
  const at::Tensor hidden = torch::randn({40, 64}, device()).requires_grad_();
  const at::Tensor weight = (torch::randn({1000, 64}, device()) / 4).requires_grad_();
  const at::Tensor targets = torch::randint(1000, {40}, torch::TensorOptions(device()).dtype(at::kLong));
  const auto results = [&](const at::Tensor& rows, const at::Tensor& matrix, const at::Tensor& labels) {
    const at::Tensor loss = nn::linear_cross_entropy(rows, matrix, labels, {.chunk_rows = 16});
    auto values = torch::autograd::grad({loss}, {hidden, weight});
    values.push_back(loss.detach());
    return values;
  };
  const auto expected = results(hidden, weight, targets);
  const at::Tensor labels = torch::stack({torch::full_like(targets, 999), targets}, 1);
  for (const auto& values :
       {results(hidden, weight, labels.select(1, 1)), results(strided(hidden), weight, strided(targets)),
        results(shifted(hidden), strided(weight), shifted(targets))}) {
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_LT(error_of(values[i], expected[i]), 2e-3) << i;  // TF32
  }
  const at::Tensor none = torch::randn({0, 64}, device()).requires_grad_();
  const at::Tensor loss = nn::linear_cross_entropy(none, weight, targets.slice(0, 0, 0));
  EXPECT_TRUE(std::isnan(loss.item<double>())) << "as LibTorch's";
  loss.backward();
  EXPECT_EQ(none.grad().sizes(), none.sizes());
}

TEST_F(GpuFusedTest, LinearCrossEntropyUnderAutocast) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(type));
    const at::Tensor hidden = torch::randn({200, 64}, device()).requires_grad_();
    const at::Tensor weight = (torch::randn({1000, 64}, device()) / 4).requires_grad_();
    const at::Tensor targets = torch::randint(1000, {200}, torch::TensorOptions(device()).dtype(at::kLong));
    const at::Tensor hidden64 = hidden.detach().to(type).to(at::kDouble).requires_grad_();
    const at::Tensor weight64 = weight.detach().to(type).to(at::kDouble).requires_grad_();
    const at::Tensor loss64 = torch::cross_entropy_loss(hidden64.matmul(weight64.t()), targets);
    loss64.backward();
    {
      const Autocast autocast(type, at::kCUDA);
      const at::Tensor loss = nn::linear_cross_entropy(hidden, weight, targets, {.chunk_rows = 64});
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      EXPECT_LT(error_of(loss, loss64), 3 * tolerance_of(type));
      loss.backward();
      // Autocast leaves float64 as it is.
      const at::Tensor exact = nn::linear_cross_entropy(hidden64, weight64, targets);
      EXPECT_EQ(exact.scalar_type(), at::kDouble);
      EXPECT_TRUE(torch::equal(exact, torch::cross_entropy_loss(torch::linear(hidden64, weight64), targets)));
    }
    EXPECT_EQ(hidden.grad().scalar_type(), at::kFloat);
    EXPECT_LT(error_of(hidden.grad(), hidden64.grad()), 6 * tolerance_of(type));
    EXPECT_LT(error_of(weight.grad(), weight64.grad()), 6 * tolerance_of(type));
  }
}

TEST_F(GpuFusedTest, LinearCrossEntropyOfIgnoredRowsHasNoGradient) {
  const at::Tensor hidden = torch::randn({10, 64}, device()).requires_grad_();
  const at::Tensor weight = torch::randn({100, 64}, device()).requires_grad_();
  const at::Tensor targets = torch::full({10}, -100, torch::TensorOptions(device()).dtype(at::kLong));
  const at::Tensor loss = nn::linear_cross_entropy(hidden, weight, targets);
  EXPECT_TRUE(std::isnan(loss.item<double>())) << "as LibTorch's";
  loss.backward();
  EXPECT_TRUE(torch::equal(hidden.grad(), torch::zeros_like(hidden)));
  EXPECT_TRUE(torch::equal(weight.grad(), torch::zeros_like(weight)));
}

TEST_F(GpuFusedTest, LinearCrossEntropyOfAFrozenHeadAndOfFrozenRows) {
  const at::Tensor hidden = torch::randn({40, 64}, device()).requires_grad_();
  const at::Tensor weight = torch::randn({100, 64}, device()).requires_grad_();
  const at::Tensor targets = torch::randint(100, {40}, torch::TensorOptions(device()).dtype(at::kLong));
  const auto both =
      torch::autograd::grad({nn::linear_cross_entropy(hidden, weight, targets)}, {hidden, weight});
  const auto of_hidden =
      torch::autograd::grad({nn::linear_cross_entropy(hidden, weight.detach(), targets)}, {hidden});
  const auto of_weight =
      torch::autograd::grad({nn::linear_cross_entropy(hidden.detach(), weight, targets)}, {weight});
  EXPECT_TRUE(torch::equal(of_hidden[0], both[0]));
  EXPECT_TRUE(torch::equal(of_weight[0], both[1]));
}

// The factor 1 / rows has no exact value in 16 bits: rounded, it would be that of all gradients.
TEST_F(GpuFusedTest, LinearCrossEntropyDividesInFloat32) {
  constexpr int64_t kRows = 8191;
  const at::Tensor hidden = torch::randn({kRows, 64}, device()).to(at::kBFloat16).requires_grad_();
  const at::Tensor weight = (torch::randn({50, 64}, device()) / 4).to(at::kBFloat16);
  const at::Tensor targets = torch::randint(50, {kRows}, torch::TensorOptions(device()).dtype(at::kLong));
  (nn::linear_cross_entropy(hidden, weight, targets) * 3000).backward();
  const at::Tensor hidden64 = hidden.detach().to(at::kDouble).requires_grad_();
  (torch::cross_entropy_loss(hidden64.matmul(weight.to(at::kDouble).t()), targets) * 3000).backward();
  // Roundings of the values are in both directions, and vanish in the projection.
  const at::Tensor exact = hidden64.grad();
  const double ratio = ((hidden.grad().to(at::kDouble) * exact).sum() / (exact * exact).sum()).item<double>();
  EXPECT_NEAR(ratio, 1, 3e-4);
}

TEST_F(GpuFusedTest, LinearTakesAnyLayoutAndNoRows) {
  const auto made = [&](at::IntArrayRef sizes) {
    return (torch::randn(sizes, device()) / 4).to(at::kBFloat16).requires_grad_();
  };
  const at::Tensor x = made({48, 64}), weight = made({32, 64}), bias = made({32});
  const at::Tensor gradient = made({48, 32}).detach();
  const auto results = [&](const at::Tensor& rows, const at::Tensor& matrix, const at::Tensor& vector,
                           const at::Tensor& its_gradient) {
    const at::Tensor y = nn::linear(rows, matrix, vector);
    auto values = torch::autograd::grad({y}, {x, weight, bias}, {its_gradient});
    values.push_back(y.detach());
    return values;
  };
  const auto expected = results(x, weight, bias, gradient);
  for (const auto& values :
       {results(strided(x), strided(weight), strided(bias), strided(gradient)),
        results(shifted(x), shifted(weight), shifted(bias), shifted(gradient)),
        results(x.t().contiguous().t(), weight.t().contiguous().t(), bias, gradient.t().contiguous().t())}) {
    for (size_t i = 0; i < values.size(); ++i) EXPECT_LT(error_of(values[i], expected[i]), 8e-3) << i;
  }
  const at::Tensor none = made({0, 64});
  const at::Tensor y = nn::linear(none, weight, bias);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 32}));
  y.sum().backward();
  EXPECT_EQ(none.grad().sizes(), none.sizes());
  EXPECT_EQ(weight.grad().norm().item<double>(), 0);
}

TEST_F(GpuFusedTest, GeluMlpTakesAnyAddress) {
  const auto made = [&](at::IntArrayRef sizes) {
    return (torch::randn(sizes, device()) / 4).to(at::kBFloat16).requires_grad_();
  };
  const std::vector<at::Tensor> leaves = {made({48, 64}), made({256, 64}), made({256}), made({64, 256}),
                                          made({64})};
  const at::Tensor gradient = made({48, 64}).detach();
  const auto results = [&](const std::function<at::Tensor(const at::Tensor&)>& moved) {
    std::vector<at::Tensor> t;
    for (const at::Tensor& leaf : leaves) t.push_back(moved(leaf));
    const at::Tensor y = nn::gelu_mlp(t[0], t[1], t[2], t[3], t[4]);
    auto values = torch::autograd::grad({y}, leaves, {moved(gradient)});
    values.push_back(y.detach());
    return values;
  };
  const auto expected = results([](const at::Tensor& t) { return t; });
  // 2 bytes, which needs copies, and 16 bytes, for which cuBLASLt is asked separately.
  for (const int64_t elements : {1, 8}) {
    const auto values = results([&](const at::Tensor& t) { return shifted(t, elements); });
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_LT(error_of(values[i], expected[i]), 1.2e-2) << elements << ": " << i;
    }
  }
}

TEST_F(GpuFusedTest, PoolsTakeAnyLayout) {
  for (const at::ScalarType type : kTypes) {
    SCOPED_TRACE(c10::toString(type));
    const at::Tensor x = images({4, 16, 8, 8}, type);
    const at::Tensor pixels = x.permute({0, 2, 3, 1});
    const at::Tensor wide = images({4, 32, 8, 8}, type), tall = images({8, 16, 8, 8}, type);
    for (const at::Tensor& input : {shifted(pixels).permute({0, 3, 1, 2}), wide.slice(1, 8, 24),
                                    tall.slice(0, 0, 8, 2), strided(x), x.contiguous()}) {
      for (const bool is_max : {true, false}) {
        SCOPED_TRACE(fmt::format("strides [{}] max {}", fmt::join(input.strides(), ", "), is_max));
        const at::Tensor own = input.detach().requires_grad_();
        const at::Tensor plain = input.detach().to(at::kDouble).requires_grad_();
        const at::Tensor y = is_max ? nn::max_pool_2x2(own) : nn::avg_pool(own, 7);
        const at::Tensor expected = is_max ? torch::max_pool2d(plain, 2) : torch::avg_pool2d(plain, 7);
        EXPECT_LT(error_of(y, expected), tolerance_of(type));
        const at::Tensor gradient = torch::randn(y.sizes(), device()).to(type);
        const auto exact = torch::autograd::grad({expected}, {plain}, {gradient.to(at::kDouble)});
        const at::Tensor rows = gradient.permute({0, 2, 3, 1}).contiguous();
        for (const at::Tensor& each : {gradient, strided(gradient), shifted(rows).permute({0, 3, 1, 2})}) {
          const auto values = torch::autograd::grad({y}, {own}, {each}, /*retain_graph=*/true);
          EXPECT_LT(error_of(values[0], exact[0]), tolerance_of(type));
        }
      }
    }
  }
}

// GPT-2 on the GPU: fused in bfloat16, and in float32 without TF32, against the CPU.
TEST_F(GpuFusedTest, GptEqualsTheCpus) {
  struct Run {
    c10::Device where;
    at::ScalarType autocast;
  };
  const bool had_tf32 = at::globalContext().allowTF32CuBLAS();
  at::globalContext().setAllowTF32CuBLAS(false);
  const at::Tensor tokens = torch::randint(1000, {3, 65});
  std::vector<std::vector<at::Tensor>> values;
  for (const Run& run :
       {Run{at::kCPU, at::kFloat}, Run{device(), at::kFloat}, Run{device(), at::kBFloat16}}) {
    torch::manual_seed(5);
    const Model model =
        models::gpt({.vocabulary = 1000, .context = 64, .layers = 3, .heads = 2, .hidden_size = 128});
    model.module()->to(run.where);
    const at::Tensor own = tokens.to(run.where);
    at::Tensor loss;
    {
      const Autocast autocast(run.autocast, run.where.type());
      loss = models::gpt_loss(model, own.slice(1, 0, 64), own.slice(1, 1));
    }
    loss.backward();
    auto& all = values.emplace_back(std::vector<at::Tensor>{loss.detach().cpu()});
    for (const at::Tensor& parameter : model.module()->parameters()) all.push_back(parameter.grad().cpu());
  }
  at::globalContext().setAllowTF32CuBLAS(had_tf32);
  for (size_t i = 0; i < values[0].size(); ++i) {
    EXPECT_LT(error_of(values[1][i], values[0][i]), 1e-4) << i;
    EXPECT_LT(error_of(values[2][i], values[0][i]), i == 0 ? 2e-3 : 4e-2) << i;
  }
}

// The network on the GPU with fused kernels, and on the CPU with plain operations.
TEST_F(GpuFusedTest, WideResNetEqualsTheCpus) {
  const bool had_tf32 = at::globalContext().allowTF32CuDNN();
  at::globalContext().setAllowTF32CuDNN(false);
  std::vector<std::vector<at::Tensor>> values;
  const at::Tensor images = torch::randn({6, 3, 32, 32}).contiguous(kChannelsLast);
  for (const c10::Device where : {c10::Device(at::kCPU), device()}) {
    torch::manual_seed(5);
    const Model model = models::wide_resnet({.classes = 10, .widen_factor = 2, .dropout = 0});
    model.module()->to(where);
    for (at::Tensor& parameter : model.module()->parameters()) {
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(kChannelsLast));
    }
    const at::Tensor y = model(images.to(where));
    (y * torch::linspace(-1, 1, y.numel(), where).view(y.sizes())).sum().backward();
    auto& all = values.emplace_back(std::vector<at::Tensor>{y.detach()});
    for (const at::Tensor& parameter : model.module()->parameters()) all.push_back(parameter.grad());
    for (const at::Tensor& buffer : model.module()->buffers()) all.push_back(buffer);
  }
  at::globalContext().setAllowTF32CuDNN(had_tf32);
  for (size_t i = 0; i < values[0].size(); ++i)
    EXPECT_LT(error_of(values[1][i].cpu(), values[0][i]), 2e-3) << i;
}

}  // namespace
}  // namespace lockstep
