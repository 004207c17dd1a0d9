// DataParallel and SyncBatchNorm on a GPU against plain loops over the joined batch.

#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/sync_batch_norm.h>
#include <torch/torch.h>

#include "support/formula.h"
#include "support/gpu.h"

namespace lockstep {
namespace {

using test::formula;
using test::same_bits;

constexpr int kSteps = 8;
constexpr int64_t kBatch = 16;

torch::nn::Sequential make_net(c10::Device device) {
  torch::nn::Sequential net(torch::nn::Linear(6, 32), torch::nn::ReLU(), torch::nn::Linear(32, 32),
                            torch::nn::Tanh(), torch::nn::Linear(32, 3));
  test::set_parameters(*net);
  net->to(device);
  return net;
}

// Samples [first, first + count) of a step.
at::Tensor input(int step, int64_t first, int64_t count, c10::Device device) {
  return formula({kBatch, 6}, 100 + step).narrow(0, first, count).to(device);
}

torch::optim::SGD make_sgd(const torch::nn::Sequential& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}

std::vector<at::Tensor> plain_loop(c10::Device device) {
  auto net = make_net(device);
  auto optimizer = make_sgd(net);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    net->forward(input(step, 0, kBatch, device)).square().mean().backward();
    optimizer.step();
  }
  return net->parameters();
}

std::vector<at::Tensor> parallel_loop(const Communicator& group, c10::Device device,
                                      const DataParallelOptions& options = {}) {
  auto net = make_net(device);
  auto optimizer = make_sgd(net);
  DataParallel model(net, group, options);
  const int64_t count = kBatch / group.size();
  for (int step = 0; step < kSteps; ++step) {
    model.zero_grad();
    model.forward(input(step, count * group.rank(), count, device)).square().mean().backward();
    optimizer.step();
  }
  return net->parameters();
}

class GpuDataParallelTest : public test::GpuTest {};

TEST_F(GpuDataParallelTest, OneRankOverNcclIsThePlainLoopBitForBit) {
  const auto expected = plain_loop(device());
  const auto actual = parallel_loop(alone(), device());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].device(), device());
    EXPECT_TRUE(same_bits(actual[i], expected[i])) << "parameter " << i;
  }
}

TEST_F(GpuDataParallelTest, AccumulatesAndClipsOverNccl) {
  auto net = make_net(device());
  DataParallel model(net, alone());
  {
    const auto scope = model.no_sync();
    model.forward(input(0, 0, 8, device())).square().sum().backward();
  }
  model.forward(input(0, 8, 8, device())).square().sum().backward();
  auto other = make_net(device());
  other->forward(input(0, 0, kBatch, device())).square().sum().backward();
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(torch::allclose(net->parameters()[i].grad(), other->parameters()[i].grad(), 1e-4, 1e-5));
  }
  const double expected = torch::nn::utils::clip_grad_norm_(other->parameters(), 0.5);
  EXPECT_NEAR(model.clip_grad_norm(0.5).item<double>(), expected, 1e-4 * expected);
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(torch::allclose(net->parameters()[i].grad(), other->parameters()[i].grad(), 1e-3, 1e-5));
  }
}

TEST_F(GpuDataParallelTest, TwoProcessesOverGlooAreThePlainLoopOverTheJoinedBatch) {
  run_processes(2, [&](World& world) {
    const auto expected = plain_loop(device());
    // Several buckets; and gradients that go over the network in short.
    const DataParallelOptions small{.bucket_cap_bytes = 2000};
    const DataParallelOptions compressed{.compression = GradientCompression::kBFloat16};
    for (const auto& [options, tolerance] : {std::pair(small, 1e-4), {compressed, 2e-2}}) {
      const auto actual = parallel_loop(world.communicator(), device(), options);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(torch::allclose(actual[i], expected[i], tolerance, tolerance / 10)) << "parameter " << i;
        const at::Tensor first = actual[i].detach().clone();
        world.communicator().broadcast(first).wait();
        EXPECT_TRUE(same_bits(first, actual[i])) << "ranks differ in parameter " << i;
      }
    }
  });
}

// SyncBatchNorm over the ranks' parts of a batch against BatchNorm over the whole of it.
void expect_joined_batch_norm(const Communicator& group, c10::Device device, at::ScalarType dtype,
                              at::MemoryFormat format, double tolerance) {
  const auto options = torch::nn::BatchNormOptions(4);
  torch::nn::BatchNorm2d reference(options);
  SyncBatchNorm norm(options, group);
  reference->to(device, dtype);
  norm->to(device, dtype);
  const int64_t rows = 12 / group.size();
  const auto near = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
    EXPECT_LT((a - b).abs().max().item<double>(), tolerance) << what << ' ' << dtype << ' ' << format;
  };
  for (int step = 0; step < 3; ++step) {
    const std::vector<int64_t> sizes{12, 4, 5, 7};
    const auto whole = formula(sizes, step).to(device, dtype).contiguous(format).requires_grad_();
    const auto weight = formula(sizes, 50 + step).to(device, dtype).contiguous(format);
    const auto mine = [&](const at::Tensor& tensor) { return tensor.narrow(0, rows * group.rank(), rows); };
    const auto expected = reference(whole);
    reference->zero_grad();
    (expected * weight).sum().backward();

    const auto part = mine(whole.detach()).clone().requires_grad_();
    const auto output = norm(part);
    norm->zero_grad();
    (output * mine(weight)).sum().backward();

    near(output, mine(expected), "output");
    near(part.grad(), mine(whole.grad()), "gradient of the input");
    for (size_t i = 0; i < norm->parameters().size(); ++i) {
      const auto sum = norm->parameters()[i].grad().clone();
      group.all_reduce(sum).wait();
      near(sum, reference->parameters()[i].grad(), "gradient of a parameter");
    }
    near(norm->running_mean, reference->running_mean, "running mean");
    near(norm->running_var, reference->running_var, "running variance");
  }
}

void expect_joined_batch_norms(const Communicator& group, c10::Device device) {
  expect_joined_batch_norm(group, device, at::kDouble, at::MemoryFormat::Contiguous, 1e-10);
  expect_joined_batch_norm(group, device, at::kFloat, at::MemoryFormat::ChannelsLast, 1e-4);
}

TEST_F(GpuDataParallelTest, SyncBatchNormWithOneRankOverNccl) {
  expect_joined_batch_norms(alone(), device());
}

TEST_F(GpuDataParallelTest, SyncBatchNormOfTwoProcessesOverGloo) {
  run_processes(2, [&](World& world) { expect_joined_batch_norms(world.communicator(), device()); });
}

}  // namespace
}  // namespace lockstep
