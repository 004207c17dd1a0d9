// SyncBatchNorm over the shards of a batch against BatchNorm over the whole of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/error.h>
#include <lockstep/nn.h>
#include <torch/torch.h>

#include "support/formula.h"
#include "support/group_case.h"

namespace lockstep {
namespace {

using test::formula;
using test::run_group;
using testing::AllOf;
using testing::HasSubstr;

constexpr double kTolerance = 1e-12;

struct NormCase {
  std::vector<int64_t> rows;   // of each rank
  std::vector<int64_t> inner;  // dimensions after the channels
  torch::nn::BatchNormOptions options = torch::nn::BatchNormOptions(3);
};

void expect_near(const at::Tensor& a, const at::Tensor& b, const char* what, double tolerance = kTolerance) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  if (!a.defined() || a.numel() == 0) return;
  EXPECT_LT((a - b).abs().max().item<double>(), tolerance) << what;
}

at::Tensor reference_forward(torch::nn::Module& norm, const at::Tensor& input) {
  if (auto* one = norm.as<torch::nn::BatchNorm1dImpl>()) return one->forward(input);
  if (auto* two = norm.as<torch::nn::BatchNorm2dImpl>()) return two->forward(input);
  return norm.as<torch::nn::BatchNorm3dImpl>()->forward(input);
}

std::shared_ptr<torch::nn::Module> make_reference(const NormCase& test) {
  if (test.inner.size() < 2) return std::make_shared<torch::nn::BatchNorm1dImpl>(test.options);
  if (test.inner.size() == 2) return std::make_shared<torch::nn::BatchNorm2dImpl>(test.options);
  return std::make_shared<torch::nn::BatchNorm3dImpl>(test.options);
}

void set_affine(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  int64_t salt = 500;
  for (auto& parameter : module.parameters()) parameter.copy_(formula(parameter.sizes(), ++salt) + 1);
}

void compare(const NormCase& test) {
  std::vector<int64_t> sizes{0, 3};
  for (const int64_t rows : test.rows) sizes[0] += rows;
  sizes.insert(sizes.end(), test.inner.begin(), test.inner.end());
  run_group({"gloo", std::vector<int>(test.rows.size(), 0)}, [&](Communicator& group) {
    auto reference = make_reference(test);
    SyncBatchNorm norm(test.options, group);
    for (auto& module : {reference, std::static_pointer_cast<torch::nn::Module>(norm.ptr())}) {
      module->to(torch::kDouble);
      set_affine(*module);
    }
    int64_t begin = 0;
    for (int rank = 0; rank < group.rank(); ++rank) begin += test.rows[static_cast<size_t>(rank)];
    const int64_t rows = test.rows[static_cast<size_t>(group.rank())];

    for (int step = 0; step < 3; ++step) {
      const auto whole = formula(sizes, step).to(torch::kDouble).requires_grad_();
      const auto weight = formula(sizes, 50 + step).to(torch::kDouble);
      const auto expected = reference_forward(*reference, whole);
      reference->zero_grad();
      (expected * weight).sum().backward();

      const auto part = whole.detach().narrow(0, begin, rows).clone().requires_grad_();
      const auto output = norm(part);
      norm->zero_grad();
      (output * weight.narrow(0, begin, rows)).sum().backward();

      expect_near(output, expected.narrow(0, begin, rows), "output");
      expect_near(part.grad(), whole.grad().narrow(0, begin, rows), "gradient of the input");
      for (size_t i = 0; i < norm->parameters().size(); ++i) {
        auto sum = norm->parameters()[i].grad().clone();
        group.all_reduce(sum).wait();
        expect_near(sum, reference->parameters()[i].grad(), "gradient of a parameter");
      }
      for (size_t i = 0; i < norm->buffers().size(); ++i) {
        expect_near(norm->buffers()[i].to(torch::kDouble), reference->buffers()[i].to(torch::kDouble),
                    "buffer");
      }
    }
    norm->eval();
    reference->eval();
    const auto input = formula(sizes, 99).to(torch::kDouble);
    expect_near(norm(input), reference_forward(*reference, input), "evaluation");
  });
}

TEST(SyncBatchNormTest, EveryNumberOfDimensions) {
  compare({.rows = {4, 4}, .inner = {}});
  compare({.rows = {4, 4}, .inner = {5}});
  compare({.rows = {2, 2}, .inner = {4, 5}});
  compare({.rows = {2, 2}, .inner = {2, 3, 2}});
}

TEST(SyncBatchNormTest, BatchesOfDifferentSizeAndAnEmptyOne) {
  compare({.rows = {5, 1, 3}, .inner = {2}});
  compare({.rows = {4, 0, 3}, .inner = {}});
  compare({.rows = {1, 1}, .inner = {}});
}

TEST(SyncBatchNormTest, ValuesFarFromZeroDoNotCancel) {
  // At 1e6 a double resolves 1e-10, and so do the normalised values; a variance from
  // sums of squares would be wrong by 1e-3.
  constexpr double kOffset = 1e6;
  run_group({"gloo", {0, 0}}, [](Communicator& group) {
    torch::nn::BatchNorm1d reference(3);
    SyncBatchNorm norm(torch::nn::BatchNormOptions(3), group);
    reference->to(torch::kDouble);
    norm->to(torch::kDouble);
    const auto centred = formula({8, 3}, 1).to(torch::kDouble);
    // The reference never sees the offset, so that the error measured is ours alone.
    const auto expected = reference(centred).narrow(0, 4 * group.rank(), 4);
    expect_near(norm((centred + kOffset).narrow(0, 4 * group.rank(), 4)), expected, "output", 1e-8);
  });
}

TEST(SyncBatchNormTest, OneRank) { compare({.rows = {6}, .inner = {3}}); }

TEST(SyncBatchNormTest, CumulativeAverageNoStatisticsNoAffine) {
  compare({.rows = {3, 5}, .inner = {2}, .options = torch::nn::BatchNormOptions(3).momentum(std::nullopt)});
  compare({.rows = {3, 5}, .inner = {2}, .options = torch::nn::BatchNormOptions(3).affine(false)});
  compare({.rows = {4, 4}, .inner = {}, .options = torch::nn::BatchNormOptions(3).eps(0.1).momentum(0.3)});
}

TEST(SyncBatchNormTest, WithoutRunningStatisticsTrainingIsTheSame) {
  run_group({"gloo", {0, 0}}, [](Communicator& group) {
    const auto options = torch::nn::BatchNormOptions(3).track_running_stats(false);
    torch::nn::BatchNorm1d reference(options);
    SyncBatchNorm norm(options, group);
    norm->to(torch::kDouble);
    reference->to(torch::kDouble);
    EXPECT_TRUE(norm->buffers().empty());
    for (const bool training : {true, false}) {
      norm->train(training);
      reference->train(training);
      const auto whole = formula({8, 3}, 1).to(torch::kDouble);
      expect_near(norm(whole.narrow(0, 4 * group.rank(), 4)), reference(whole).narrow(0, 4 * group.rank(), 4),
                  "output");
    }
  });
}

TEST(SyncBatchNormTest, HalfPrecisionInputsAndChannelsLast) {
  run_group({"gloo", {0, 0}}, [](Communicator& group) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(3), group);
    torch::nn::BatchNorm2d reference(3);
    const auto whole = formula({4, 3, 4, 4}, 1).contiguous(at::MemoryFormat::ChannelsLast);
    const auto expected = reference(whole).narrow(0, 2 * group.rank(), 2);
    const auto input = whole.narrow(0, 2 * group.rank(), 2).to(torch::kBFloat16).requires_grad_();
    const auto output = norm(input);
    EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(output.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_LT((output.to(torch::kFloat) - expected).abs().max().item<float>(), 0.03f);
    output.sum().backward();
    EXPECT_EQ(input.grad().scalar_type(), torch::kBFloat16);
  });
}

TEST(SyncBatchNormTest, RefusesWhatHasNoVarianceAndWrongShapes) {
  SyncBatchNorm norm(torch::nn::BatchNormOptions(3), Communicator());
  EXPECT_THROW(norm(torch::ones({1, 3})), ConfigError);
  EXPECT_THROW(norm(torch::ones({4, 2})), ConfigError);
  EXPECT_THROW(norm(torch::ones({3})), ConfigError);
}

struct ConvBlock : torch::nn::Module {
  torch::nn::Sequential layers = register_module(
      "layers",
      torch::nn::Sequential(torch::nn::Conv2d(1, 2, 3), torch::nn::BatchNorm2d(2), torch::nn::ReLU()));
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
};

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(std::make_shared<ConvBlock>(), torch::nn::Flatten(), torch::nn::Linear(8, 3),
                            torch::nn::BatchNorm1d(3));
  net->to(torch::kDouble);
  test::set_parameters(*net);
  return net;
}

TEST(ConvertSyncBatchNorm, ReplacesInSequentialsAndKeepsTheTensors) {
  run_group({"gloo", {0, 0}}, [](Communicator& group) {
    auto net = make_net(), whole_net = make_net();
    const auto before = net->named_parameters();
    EXPECT_EQ(convert_sync_batch_norm(*net, group), 2);
    const auto after = net->named_parameters();
    ASSERT_EQ(before.keys(), after.keys());
    for (const auto& item : before) EXPECT_TRUE(item.value().is_same(after[item.key()])) << item.key();

    // One step over shards, gradients meanwhile overlapping with the layers' own
    // collectives, against the whole batch.
    const auto input = formula({6, 1, 4, 4}, 3).to(torch::kDouble);
    whole_net->forward(input).square().mean().backward();
    DataParallel model(net, group, {.bucket_cap_bytes = 1});
    model.forward(input.narrow(0, 3 * group.rank(), 3)).square().mean().backward();
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      expect_near(net->parameters()[i].grad(), whole_net->parameters()[i].grad(), "gradient");
    }
    for (size_t i = 0; i < net->buffers().size(); ++i) {
      expect_near(net->buffers()[i].to(torch::kDouble), whole_net->buffers()[i].to(torch::kDouble), "buffer");
    }
  });
}

TEST(ConvertSyncBatchNorm, NamesWhatItCannotReplace) {
  struct Block : torch::nn::Module {
    torch::nn::BatchNorm1d bn = register_module("bn", torch::nn::BatchNorm1d(2));
    at::Tensor forward(const at::Tensor& x) { return bn(x); }
  };
  torch::nn::Sequential net(std::make_shared<Block>(), torch::nn::BatchNorm1d(2));
  try {
    convert_sync_batch_norm(*net, Communicator());
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("lockstep::SyncBatchNorm"), HasSubstr(": 0.bn")));
  }
  EXPECT_NE(net->ptr(1)->as<torch::nn::BatchNorm1d>(), nullptr);
}

}  // namespace
}  // namespace lockstep
