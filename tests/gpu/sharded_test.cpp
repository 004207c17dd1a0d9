// Divided models on a GPU: every stage, with states on the GPU, in host memory and in files,
// against a plain loop.

#include <gtest/gtest.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include "support/block_net.h"
#include "support/formula.h"
#include "support/gpu.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using test::formula;
using Net = test::BlockNet;

constexpr int kShardedSteps = 10;
constexpr int64_t kShardedBatch = 12;

struct Result {
  std::vector<double> losses;  // of the joined batch
  std::vector<at::Tensor> weights;
};

at::Tensor batch_of(int step, c10::Device device) {
  return formula({kShardedBatch, 3}, 50 + step).to(device);
}

at::Tensor loss_of(Net& net, const at::Tensor& input) { return (net->forward(input) - 0.3).square().mean(); }

torch::optim::AdamW make_adamw(const Net& net) {
  return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.1));
}

Result undivided_loop(c10::Device device, int steps = kShardedSteps) {
  Net net;
  net->to(device);
  auto optimizer = make_adamw(net);
  Result result;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(net, batch_of(step, device));
    loss.backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    optimizer.step();
    result.losses.push_back(loss.item<double>());
  }
  result.weights = net->parameters();
  return result;
}

// Small buckets and few small parameters: all paths are taken.
ShardedOptions options_of(int stage, OffloadDevice optimizer, const std::filesystem::path& folder) {
  ShardedOptions options{.zero = {.stage = stage, .bucket_cap_bytes = 300, .persistence_threshold = 9}};
  options.zero.offload_optimizer.device = optimizer;
  options.zero.offload_optimizer.nvme_path = folder;
  options.zero.aio.block_size = 4096;
  return options;
}

// `inspect`: after the last step.
Result sharded_loop(const Communicator& group, c10::Device device, ShardedOptions options,
                    const std::function<void(const ShardedModel::Memory&)>& inspect = {},
                    int steps = kShardedSteps) {
  Net net;
  if (options.zero.offload_param.device == OffloadDevice::kNone) {
    net->to(device);
  } else {
    options.device = device;  // it comes from host memory, bucket by bucket
  }
  auto optimizer = make_adamw(net);
  ShardedModel model(net.ptr(), optimizer, group, options);
  const int64_t count = kShardedBatch / group.size();
  Result result;
  for (int step = 0; step < steps; ++step) {
    model.zero_grad();
    model.prepare_forward();
    const at::Tensor loss = loss_of(net, batch_of(step, device).narrow(0, count * group.rank(), count));
    loss.backward();
    model.clip_grad_norm(0.5);
    model.step();
    const at::Tensor mean = loss.detach().clone();
    group.all_reduce(mean, ReduceOp::kMean).wait();
    result.losses.push_back(mean.item<double>());
  }
  if (inspect) inspect(model.memory());
  const auto scope = model.gather_parameters();
  for (const at::Tensor& parameter : net->parameters()) {
    EXPECT_EQ(parameter.device(), device);
    result.weights.push_back(parameter.detach().clone());
  }
  return result;
}

// Kernels may differ with the place of a tensor in memory, and the CPU's do in any case.
void expect_close(const Result& actual, const Result& expected, const std::string& what) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    const double loss = expected.losses[step];
    EXPECT_NEAR(actual.losses[step], loss, 2e-5 * loss) << what << ", step " << step;
  }
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (size_t i = 0; i < actual.weights.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual.weights[i], expected.weights[i], 1e-4, 1e-5))
        << what << ", parameter " << i;
  }
}

class GpuShardedTest : public test::GpuTest {
 protected:
  ShardedOptions options(int stage, OffloadDevice optimizer = OffloadDevice::kNone) const {
    return options_of(stage, optimizer, folder_.path());
  }
  // Every stage, and stage 3 with its states in host memory, against one rank.
  void expect_stages_over_nccl(int size, int steps) const {
    run_nccl(size, [&](World& world) {
      const Result expected = undivided_loop(device(), steps);
      for (int stage = 0; stage <= 3; ++stage) {
        expect_close(sharded_loop(world.communicator(), device(), options(stage), {}, steps), expected,
                     "stage " + std::to_string(stage));
      }
      expect_close(sharded_loop(world.communicator(), device(), options(3, OffloadDevice::kCpu), {}, steps),
                   expected, "offload");
    });
  }

  test::TemporaryFolder folder_;  // on a disk: files of device nvme take no other
};

TEST_F(GpuShardedTest, EveryStageIsThePlainLoop) {
  const Result expected = undivided_loop(device());
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  for (int stage = 0; stage <= 3; ++stage) {
    expect_close(sharded_loop(alone(), device(), options(stage)), expected, "stage " + std::to_string(stage));
  }
}

TEST_F(GpuShardedTest, OffloadToHostMemoryIsThePlainLoop) {
  const Result expected = undivided_loop(device());
  for (int stage = 1; stage <= 3; ++stage) {
    const auto offloaded = [&](const ShardedModel::Memory& memory) {
      EXPECT_GE(memory.host, memory.master + memory.optimizer) << "stage " << stage;
      EXPECT_EQ(memory.nvme, 0);
    };
    expect_close(sharded_loop(alone(), device(), options(stage, OffloadDevice::kCpu), offloaded), expected,
                 "stage " + std::to_string(stage));
  }
}

TEST_F(GpuShardedTest, OffloadOfParametersIsThePlainLoop) {
  const Result expected = undivided_loop(device());
  for (const OffloadDevice optimizer : {OffloadDevice::kCpu, OffloadDevice::kNvme}) {
    ShardedOptions all = options(3, optimizer);
    all.zero.offload_param.device = OffloadDevice::kCpu;
    expect_close(sharded_loop(alone(), device(), all,
                              [](const ShardedModel::Memory& memory) {
                                EXPECT_LT(memory.device(), memory.total() / 2);
                              }),
                 expected, optimizer == OffloadDevice::kCpu ? "host" : "files");
  }
}

TEST_F(GpuShardedTest, OffloadToFilesIsThePlainLoop) {
  expect_close(sharded_loop(alone(), device(), options(3, OffloadDevice::kNvme),
                            [](const ShardedModel::Memory& memory) { EXPECT_GT(memory.nvme, 0); }),
               undivided_loop(device()), "files");
}

TEST_F(GpuShardedTest, EveryStageOverNcclTwoRanks) { expect_stages_over_nccl(2, kShardedSteps); }
TEST_F(GpuShardedTest, EveryStageOverNcclFourRanks) { expect_stages_over_nccl(4, 3); }

TEST_F(GpuShardedTest, TwoProcessesOverGlooAreThePlainLoopOverTheJoinedBatch) {
  run_processes(2, [&](World& world) {
    const Result expected = undivided_loop(device());
    for (int stage = 0; stage <= 3; ++stage) {
      expect_close(sharded_loop(world.communicator(), device(), options(stage)), expected,
                   "stage " + std::to_string(stage));
    }
    for (const OffloadDevice place : {OffloadDevice::kCpu, OffloadDevice::kNvme}) {
      expect_close(sharded_loop(world.communicator(), device(), options(3, place)), expected, "offload");
    }
  });
}

}  // namespace
}  // namespace lockstep
