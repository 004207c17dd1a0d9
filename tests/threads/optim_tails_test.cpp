// Adam of make_cpu_adam on shards: LibTorch rounds the last elements of a tensor in another order than the
// others, and a shard may begin or end among them.

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <gtest/gtest.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include "support/block_net.h"
#include "support/formula.h"
#include "support/group_case.h"

namespace lockstep {
namespace {

using test::formula;
using test::run_group;
using test::same_bits;

constexpr int kSteps = 20;
constexpr double kLr = 0.05;
constexpr double kDecay = 0.1;

// No parameter has a multiple of 8 elements.
struct OddNetImpl : torch::nn::Module {
  OddNetImpl()
      : first(register_module("first", Sharded<test::BlockImpl>(7))),
        second(register_module("second", Sharded<test::BlockImpl>(7))),
        out(register_module("out", torch::nn::Linear(7, 3))) {
    test::set_parameters(*this);
  }
  // The gradients of every step, the same on all ranks: their mean is exact.
  void backward(int step) {
    const at::Tensor x = formula({4, 7}, 50 + step) * std::pow(10, step % 5 - 2);
    out(second(first(x))).square().sum().backward();
  }
  Sharded<test::BlockImpl> first, second;
  torch::nn::Linear out;
};
TORCH_MODULE(OddNet);

std::vector<at::Tensor> weights_of(const OddNet& net) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : net->parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

std::vector<at::Tensor> trained_by_libtorch() {
  OddNet net;
  const std::vector<at::Tensor> parameters = net->parameters();
  std::vector<at::Tensor> first, second, counts;
  for (const at::Tensor& parameter : parameters) {
    first.push_back(at::zeros_like(parameter));
    second.push_back(at::zeros_like(parameter));
    counts.push_back(at::zeros({}));
  }
  for (int step = 0; step < kSteps; ++step) {
    net->zero_grad();
    net->backward(step);
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < parameters.size(); ++i) {
      gradients.push_back(parameters[i].grad());
      counts[i].add_(1);
    }
    at::_fused_adamw_(parameters, gradients, first, second, {}, counts, kLr, 0.9, 0.999, kDecay, 1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
  }
  return weights_of(net);
}

std::vector<at::Tensor> trained_in_shards(int stage, size_t ranks, OffloadDevice offload) {
  std::vector<at::Tensor> weights;
  run_group({"shm", std::vector<int>(ranks, 0)}, [&](Communicator& group) {
    OddNet net;
    const auto optimizer = make_cpu_adam(net->parameters(), {.lr = kLr, .weight_decay = kDecay});
    ShardedOptions options{.zero = {.stage = stage, .bucket_cap_bytes = 1000, .persistence_threshold = 9}};
    options.zero.offload_optimizer.device = offload;
    ShardedModel model(net.ptr(), *optimizer, group, options);
    for (int step = 0; step < kSteps; ++step) {
      model.zero_grad();
      model.prepare_forward();
      net->backward(step);
      model.step();
    }
    const auto scope = model.gather_parameters();
    if (group.rank() == 0) weights = weights_of(net);
  });
  return weights;
}

TEST(OptimTails, ShardsHaveTheBitsOfLibTorchsFusedAdam) {
  const int threads_before = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<at::Tensor> expected = trained_by_libtorch();
  for (const int stage : {0, 1, 2, 3}) {
    for (const size_t ranks : {1, 2, 4}) {
      for (const OffloadDevice offload : {OffloadDevice::kNone, OffloadDevice::kCpu}) {
        if (stage == 0 && offload != OffloadDevice::kNone) continue;
        const std::vector<at::Tensor> weights = trained_in_shards(stage, ranks, offload);
        ASSERT_EQ(weights.size(), expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(same_bits(weights[i], expected[i]))
              << "parameter " << i << " at stage " << stage << " on " << ranks << " ranks"
              << (offload == OffloadDevice::kNone ? "" : " with offload");
        }
      }
    }
  }
  at::set_num_threads(threads_before);
}

}  // namespace
}  // namespace lockstep
