// What a model's forward costs, counted from the operations that it runs.

#include "train/deepspeed/flops_profiler.h"

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include <fstream>
#include <sstream>

#include "support/block_net.h"
#include "support/temporary_folder.h"

namespace lockstep::deepspeed {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Total final : OperationListener {
  void began(const Cost& cost, c10::ArrayRef<const c10::IValue>, std::string_view) override {
    sum += cost;
    ++operations;
  }
  void ended(std::chrono::nanoseconds time) override { EXPECT_GE(time.count(), 0); }
  Cost sum;
  int operations = 0;
};

template <typename Body>
Total count(Body body) {
  Total total;
  const OperationRecorder recorder(at::kCPU, total);
  body();
  return total;
}

TEST(OperationCostTest, ProductsAreCountedOnce) {
  const at::Tensor x = torch::ones({5, 3});
  const at::Tensor w = torch::ones({7, 3});
  // aten::linear calls aten::addmm, which is its own.
  const Total linear = count([&] { torch::nn::functional::linear(x, w, torch::ones({7})); });
  EXPECT_EQ(linear.operations, 1);
  EXPECT_EQ(linear.sum.macs, 5 * 3 * 7);
  EXPECT_EQ(linear.sum.flops, 2 * 5 * 3 * 7);
  EXPECT_EQ(count([&] {
              torch::matmul(torch::ones({2, 4, 5}), torch::ones({5, 6}));
            }).sum.macs,
            2 * 4 * 5 * 6);
  EXPECT_EQ(count([&] { torch::matmul(torch::ones({4, 5}), torch::ones({5})); }).sum.macs, 4 * 5);
  const Total addmm = count([&] { torch::addmm(torch::ones({5, 7}), x, w.t()); });
  EXPECT_EQ(addmm.sum.macs, 5 * 3 * 7);
  EXPECT_EQ(addmm.sum.flops, 2 * 5 * 3 * 7 + 5 * 7);
  const at::Tensor q = torch::ones({2, 4, 10, 8});
  EXPECT_EQ(count([&] { at::scaled_dot_product_attention(q, q, q); }).sum.macs, 2 * (2 * 4 * 10 * 10 * 8));
}

TEST(OperationCostTest, ConvolutionsMeetTheirKernelAtEachPlace) {
  const at::Tensor x = torch::ones({2, 4, 9, 12});
  const at::Tensor w = torch::ones({6, 2, 3, 3});
  namespace F = torch::nn::functional;
  const Total grouped = count([&] {
    F::conv2d(x, w,
              F::Conv2dFuncOptions().stride({2, 1}).padding({1, 0}).dilation({1, 2}).groups(2).bias(
                  torch::ones({6})));
  });
  const int64_t places = 2 * 5 * 8;
  EXPECT_EQ(grouped.sum.macs, places * 6 * 2 * 9);
  EXPECT_EQ(grouped.sum.flops, 2 * places * 6 * 2 * 9 + places * 6);
  const Total same = count([&] {
    F::conv2d(x, torch::ones({5, 4, 3, 3}), F::Conv2dFuncOptions().padding(torch::kSame));
  });
  EXPECT_EQ(same.sum.macs, 2 * 9 * 12 * 5 * 4 * 9);
  const Total transposed = count([&] { F::conv_transpose2d(x, torch::ones({4, 3, 2, 2})); });
  EXPECT_EQ(transposed.sum.macs, x.numel() * 3 * 2 * 2);
}

TEST(OperationCostTest, ElementWiseOperationsAndNorms) {
  const at::Tensor x = torch::ones({4, 6});
  EXPECT_EQ(count([&] { torch::relu(x); }).sum.flops, 24);
  EXPECT_EQ(count([&] { torch::layer_norm(x, {6}, torch::ones({6}), torch::ones({6})); }).sum.flops, 5 * 24);
  EXPECT_EQ(count([&] { torch::layer_norm(x, {6}); }).sum.flops, 4 * 24);
  EXPECT_EQ(count([&] { x + torch::ones({6}); }).sum.flops, 24);
  EXPECT_EQ(count([&] { torch::dropout(x, 0.5, /*train=*/true); }).sum.flops, 0);
  EXPECT_EQ(count([&] { x.t().contiguous().view({24}); }).operations, 0);
  EXPECT_EQ(count([&] { torch::relu(x); }).sum.macs, 0);
}

TEST(OperationRecorderTest, OnlyWhileItLivesAndOnlyInItsThread) {
  const at::Tensor x = torch::ones({4, 6});
  Total total;
  {
    const OperationRecorder recorder(at::kCPU, total);
    std::thread([&] { torch::relu(x); }).join();
    EXPECT_EQ(total.operations, 0);
    torch::relu(x);
  }
  torch::relu(x);
  EXPECT_EQ(total.operations, 1);
}

const ModelProfile::Part& part(const ModelProfile& profile, const std::string& name) {
  for (const ModelProfile::Part& part : profile.parts()) {
    if (part.name == name) return part;
  }
  throw std::out_of_range(name);
}

TEST(ModelProfileTest, AnOperationIsOfTheModuleWhoseParameterItUses) {
  test::BlockNet net;
  ModelProfile profile(*net);
  {
    const OperationRecorder recorder(at::kCPU, profile);
    net->forward(torch::ones({4, 3}));
  }
  EXPECT_EQ(profile.model().cost.macs, 4 * (3 * 8 + 2 * (2 * 8 * 24) + 8 * 2));
  EXPECT_EQ(part(profile, "in").cost.macs, 4 * 3 * 8);
  EXPECT_EQ(part(profile, "first").cost.macs, 4 * 2 * 8 * 24);
  EXPECT_EQ(part(profile, "first.up").cost.macs, 4 * 8 * 24);
  EXPECT_EQ(part(profile, "first.up").parameters, 8 * 24 + 24);
  EXPECT_EQ(part(profile, "first.up").type, "Linear");
  EXPECT_EQ(part(profile, "first.up").depth, 2);
  // tanh, and the sum around each block, use no parameter.
  const int64_t linear = 2 * profile.model().cost.macs;
  EXPECT_EQ(profile.model().cost.flops, linear + 4 * 8 + 2 * (4 * 24 + 4 * 8));
  profile.clear();
  EXPECT_EQ(part(profile, "first.up").cost.macs, 0);
}

TEST(ModelProfileTest, AnOperationInAScopeIsOfTheModuleOfThisName) {
  test::BlockNet net;
  ModelProfile profile(*net);
  const at::Tensor x = torch::ones({4, 8});
  {
    const OperationRecorder recorder(at::kCPU, profile);
    {
      RECORD_USER_SCOPE("first.up");
      torch::relu(x);
      {
        RECORD_USER_SCOPE("second");
        torch::relu(x);
      }
      torch::relu(x);
      {
        RECORD_USER_SCOPE("a scope of a user");
        torch::relu(x);
      }
    }
    torch::relu(x);
  }
  EXPECT_EQ(part(profile, "first.up").cost.flops, 2 * 32);
  EXPECT_EQ(part(profile, "first").cost.flops, 2 * 32);
  EXPECT_EQ(part(profile, "second").cost.flops, 32);
  EXPECT_EQ(profile.model().cost.flops, 5 * 32);
}

class FlopsProfilerTest : public testing::Test {
 protected:
  std::string page(DeepSpeedConfig::FlopsProfiler options, int64_t micro_batches = 1) {
    options.enabled = true;
    options.output_file = (folder_.path() / "deep/flops.txt").string();
    test::BlockNet net;
    FlopsProfiler profiler(options, *net, at::kCPU);
    for (int64_t step = 0; step < 3; ++step) {
      for (int64_t i = 0; i < micro_batches; ++i) {
        profiler.begin_forward(step);
        net->forward(torch::ones({4, 3}));
        profiler.end_forward();
      }
      profiler.after_step({.step = step,
                           .ranks = 2,
                           .batch = {.train_batch_size = 8 * micro_batches,
                                     .micro_batch_size = 4,
                                     .accumulation_steps = micro_batches},
                           .forward = std::chrono::milliseconds(2 * micro_batches),
                           .backward = std::chrono::milliseconds(4 * micro_batches),
                           .update = std::chrono::milliseconds(2)});
    }
    std::ostringstream text;
    text << std::ifstream(*options.output_file).rdbuf();
    return text.str();
  }

  test::TemporaryFolder folder_;
};

TEST_F(FlopsProfilerTest, SaysWhatOneStepCosts) {
  const std::string text = page({});
  // 3,232 multiply-accumulates; 2 of 8 ms are the forward.
  for (const char* line :
       {"Step 1, counted from 0", "fwd MACs per rank:", "3.23 KMACs", "6.75 K", "2.00 ms",
        "bwd FLOPS per rank = 2 * fwd flops / bwd latency:", "samples/second:", "1000.00",
        "depth 2:", "(first) Sharded<Block>: 416 = ", "(up) Linear: 216 = 24.49% Params"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(page({}, 2), HasSubstr("3.23 KMACs"));  // of one micro batch, not of both
}

TEST_F(FlopsProfilerTest, ListsAsDeepAndAsManyAsAsked) {
  const std::string flat = page({.module_depth = 0, .detailed = false});
  EXPECT_THAT(flat, HasSubstr("depth 0:"));
  EXPECT_THAT(flat, Not(HasSubstr("depth 1:")));
  EXPECT_THAT(flat, Not(HasSubstr("Tree")));
  const std::string two = page({.top_modules = 2});
  EXPECT_THAT(two, testing::ContainsRegex("params      - Sharded<Block> 832, Linear 50"));
  EXPECT_THAT(page({.recompute_fwd_factor = 1}), HasSubstr("bwd FLOPS per rank = 3 * fwd flops"));
}

TEST_F(FlopsProfilerTest, AFileThatCannotBeWrittenIsAWarning) {
  std::ofstream(folder_.path() / "deep") << "a file, not a folder";
  testing::internal::CaptureStderr();
  page({});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the flops profile could not be written"));
}

}  // namespace
}  // namespace lockstep::deepspeed
