// DataParallel and SyncBatchNorm on a GPU against plain loops over the joined batch.

#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/nn.h>
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

// Several buckets, so that communication overlaps the rest of backward; and gradients that go
// over the network in short.
void expect_plain_loop(const Communicator& group, c10::Device device) {
  const auto expected = plain_loop(device);
  const DataParallelOptions small{.bucket_cap_bytes = 2000};
  const DataParallelOptions compressed{.compression = GradientCompression::kBFloat16};
  for (const auto& [options, tolerance] : {std::pair(small, 1e-4), {compressed, 1e-2 * group.size()}}) {
    const auto actual = parallel_loop(group, device, options);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::allclose(actual[i], expected[i], tolerance, tolerance / 10)) << "parameter " << i;
      const at::Tensor first = actual[i].detach().clone();
      group.broadcast(first).wait();
      EXPECT_TRUE(same_bits(first, actual[i])) << "ranks differ in parameter " << i;
    }
  }
}

// Megabytes a bucket: many kernels of backward run while NCCL's do.
void expect_overlapped_gradients(const Communicator& group, c10::Device device) {
  const auto make = [&] {
    torch::nn::Sequential net;
    for (int i = 0; i < 8; ++i) net->push_back(torch::nn::Linear(512, 512));
    test::set_parameters(*net);
    net->to(device);
    return net;
  };
  const at::Tensor x = formula({4 * group.size(), 512}, 7).to(device);
  auto plain = make();
  plain->forward(x).square().mean().backward();
  auto net = make();
  DataParallel model(net, group, DataParallelOptions{.bucket_cap_bytes = 1 << 20});
  EXPECT_GE(model.buckets().size(), 8U);
  for (int step = 0; step < 3; ++step) {  // without a wait of the host in between
    model.zero_grad();
    model.forward(x.narrow(0, 4 * group.rank(), 4)).square().mean().backward();
  }
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(torch::allclose(net->parameters()[i].grad(), plain->parameters()[i].grad(), 1e-3, 1e-7))
        << "parameter " << i;
  }
}

// Backwards without sync add up on each rank; the next one reduces the sums.
void expect_accumulated_gradients(const Communicator& group, c10::Device device) {
  auto net = make_net(device);
  DataParallel model(net, group, DataParallelOptions{.bucket_cap_bytes = 2000});
  const int64_t half = kBatch / group.size() / 2;
  const int64_t first = 2 * half * group.rank();
  for (int step = 0; step < 2; ++step) {
    model.zero_grad();
    {
      const auto scope = model.no_sync();
      model.forward(input(step, first, half, device)).square().sum().backward();
    }
    model.forward(input(step, first + half, half, device)).square().sum().backward();
    auto other = make_net(device);
    other->forward(input(step, 0, kBatch, device)).square().sum().div(group.size()).backward();
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(net->parameters()[i].grad(), other->parameters()[i].grad(), 1e-4, 1e-5))
          << "step " << step << ", parameter " << i;
    }
    const double norm = torch::nn::utils::clip_grad_norm_(other->parameters(), 0.5);
    EXPECT_NEAR(model.clip_grad_norm(0.5).item<double>(), norm, 1e-4 * norm);
  }
}

// Even ranks use one branch, odd ranks the other, nobody the third.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl()
      : even(register_module("even", torch::nn::Linear(6, 4))),
        odd(register_module("odd", torch::nn::Linear(6, 4))),
        unused(register_module("unused", torch::nn::Linear(6, 4))),
        common(register_module("common", torch::nn::Linear(4, 2))) {
    test::set_parameters(*this);
  }
  torch::Tensor forward(const torch::Tensor& x, int rank) {
    return common(torch::tanh(rank % 2 == 0 ? even(x) : odd(x)));
  }
  torch::nn::Linear even, odd, unused, common;
};
TORCH_MODULE(Branches);

void expect_unused_parameters(const Communicator& group, c10::Device device) {
  Branches net;
  net->to(device);
  DataParallel model(net, group,
                     DataParallelOptions{.find_unused_parameters = true, .bucket_cap_bytes = 100});
  for (int step = 0; step < 3; ++step) {
    model.zero_grad();
    model.forward(input(step, group.rank(), 4, device), group.rank()).square().mean().backward();
    Branches other;
    other->to(device);
    for (int rank = 0; rank < group.size(); ++rank) {
      other->forward(input(step, rank, 4, device), rank).square().mean().div(group.size()).backward();
    }
    for (const auto& item : other->named_parameters()) {
      const at::Tensor& gradient = net->named_parameters()[item.key()].grad();
      ASSERT_EQ(gradient.defined(), item.value().grad().defined()) << item.key();
      if (gradient.defined()) {
        EXPECT_TRUE(torch::allclose(gradient, item.value().grad(), 1e-4, 1e-6)) << item.key();
      }
    }
  }
}

class GpuDataParallelTest : public test::GpuTest {
 protected:
  void expect_reducer_over_nccl(int size) const {
    run_nccl(size, [&](World& world) {
      expect_plain_loop(world.communicator(), device());
      expect_overlapped_gradients(world.communicator(), device());
    });
  }
  void expect_the_rest_over_nccl(int size) const {
    run_nccl(size, [&](World& world) {
      expect_accumulated_gradients(world.communicator(), device());
      expect_unused_parameters(world.communicator(), device());
    });
  }
};

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
  run_processes(2, [&](World& world) { expect_plain_loop(world.communicator(), device()); });
}

TEST_F(GpuDataParallelTest, ReducerOverNcclTwoRanks) { expect_reducer_over_nccl(2); }
TEST_F(GpuDataParallelTest, ReducerOverNcclFourRanks) { expect_reducer_over_nccl(4); }
TEST_F(GpuDataParallelTest, NoSyncAndUnusedParametersOverNcclTwoRanks) { expect_the_rest_over_nccl(2); }
TEST_F(GpuDataParallelTest, NoSyncAndUnusedParametersOverNcclFourRanks) { expect_the_rest_over_nccl(4); }

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

TEST_F(GpuDataParallelTest, SyncBatchNormOverNcclTwoRanks) {
  run_nccl(2, [&](World& world) { expect_joined_batch_norms(world.communicator(), device()); });
}

TEST_F(GpuDataParallelTest, SyncBatchNormOverNcclFourRanks) {
  run_nccl(4, [&](World& world) { expect_joined_batch_norms(world.communicator(), device()); });
}

}  // namespace
}  // namespace lockstep
