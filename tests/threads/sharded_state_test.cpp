// States of ShardedModel between stages and world sizes, with ranks as threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include "support/config_error.h"
#include "support/formula.h"
#include "support/group_case.h"
#include "support/sharded_training.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using test::error_of;
using test::formula;
using test::on_one_host;
using test::run_group;
using test::same_bits;
using test::SavedParts;
using test::set_parameters;
using test::TemporaryFolder;
using testing::HasSubstr;

struct TanhUnitImpl : torch::nn::Module {
  TanhUnitImpl() : fc(register_module("fc", torch::nn::Linear(6, 6))) {}
  torch::Tensor forward(torch::Tensor x) { return torch::tanh(fc(x)); }
  torch::nn::Linear fc;
};

struct DoubleNetImpl : torch::nn::Module {
  DoubleNetImpl()
      : first(register_module("first", Sharded<TanhUnitImpl>())),
        second(register_module("second", Sharded<TanhUnitImpl>())),
        out(register_module("out", torch::nn::Linear(6, 1))) {
    to(torch::kFloat64);
    set_parameters(*this);
  }
  torch::Tensor forward(torch::Tensor x) { return out(second(first(x))); }
  Sharded<TanhUnitImpl> first, second;
  torch::nn::Linear out;
};
TORCH_MODULE(DoubleNet);

// Twelve samples a step, whatever the number of ranks.
at::Tensor share_of(const Communicator& group, int step) {
  const int64_t count = 12 / group.size();
  return formula({12, 6}, 50 + step).to(torch::kFloat64).narrow(0, count * group.rank(), count);
}

void train(ShardedModel& model, DoubleNet& net, int from, int to) {
  for (int step = from; step < to; ++step) {
    model.zero_grad();
    model.prepare_forward();
    net->forward(share_of(model.communicator(), step)).square().mean().backward();
    model.clip_grad_norm(0.5);
    model.step();
  }
}

torch::optim::AdamW make_optimizer(const DoubleNet& net) {
  return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.1));
}

// A stage, and where its states are.
struct Layout {
  Layout(int stage_) : stage(stage_) {}  // NOLINT(google-explicit-constructor): a plain stage
  Layout(int stage_, OffloadDevice optimizer_, OffloadDevice parameters_ = OffloadDevice::kNone)
      : stage(stage_), optimizer(optimizer_), parameters(parameters_) {}

  int stage;
  OffloadDevice optimizer = OffloadDevice::kNone;
  OffloadDevice parameters = OffloadDevice::kNone;
};

ShardedOptions options_of(const Layout& layout, const TemporaryFolder& folder) {
  ShardedOptions options{
      .zero = {.stage = layout.stage, .bucket_cap_bytes = 200, .persistence_threshold = 7}};
  options.zero.offload_optimizer.device = layout.optimizer;
  options.zero.offload_optimizer.nvme_path = folder.path();
  options.zero.offload_param.device = layout.parameters;
  return options;
}

std::map<std::string, at::Tensor> run(const Layout& layout, int ranks, int from, int to,
                                      const SavedParts* start, SavedParts* end) {
  const TemporaryFolder folder;
  std::map<std::string, at::Tensor> weights;
  run_group(on_one_host(ranks), [&](Communicator& group) {
    DoubleNet net;
    auto optimizer = make_optimizer(net);
    ShardedModel model(net.ptr(), optimizer, group, options_of(layout, folder));
    if (start != nullptr) {
      model.load_parameters(start->reader(), {});
      model.load_optimizer(start->values, start->reader());
    }
    train(model, net, from, to);
    if (end != nullptr) end->take(model);
    const auto scope = model.gather_parameters();
    if (group.rank() > 0) return;
    for (const auto& item : net->named_parameters()) weights[item.key()] = item.value().detach().clone();
  });
  return weights;
}

class ShardedStateTest : public testing::TestWithParam<std::tuple<int, int>> {};

// From this stage and world size to all others.
TEST_P(ShardedStateTest, GoesOnAtEveryStageAndWorldSize) {
  const auto [stage, ranks] = GetParam();
  const auto straight = run(0, 1, 0, 15, nullptr, nullptr);
  SavedParts saved;
  run(stage, ranks, 0, 5, nullptr, &saved);
  for (const int next_stage : {0, 1, 2, 3}) {
    for (const int next_ranks : {1, 2, 3, 4}) {
      const auto weights = run(next_stage, next_ranks, 5, 15, &saved, nullptr);
      for (const auto& [name, expected] : straight) {
        EXPECT_TRUE(torch::allclose(weights.at(name), expected, 1e-9, 1e-11))
            << name << " at stage " << next_stage << " on " << next_ranks << " ranks";
      }
    }
  }
}

TEST_P(ShardedStateTest, GoesOnBitForBitOnAsManyRanks) {
  const auto [stage, ranks] = GetParam();
  const auto straight = run(stage, ranks, 0, 15, nullptr, nullptr);
  SavedParts saved;
  run(stage, ranks, 0, 5, nullptr, &saved);
  const auto weights = run(stage, ranks, 5, 15, &saved, nullptr);
  for (const auto& [name, expected] : straight) EXPECT_TRUE(same_bits(weights.at(name), expected)) << name;
}

INSTANTIATE_TEST_SUITE_P(From, ShardedStateTest,
                         testing::Combine(testing::Values(0, 1, 2, 3), testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return "stage" + std::to_string(std::get<0>(info.param)) + "_ranks" +
                                  std::to_string(std::get<1>(info.param));
                         });

// Into and out of host memory and files, between stages and world sizes.
TEST(ShardedState, GoesOnWhereverItWasAndIs) {
  const auto straight = run(0, 1, 0, 15, nullptr, nullptr);
  const auto expect_straight = [&](const Layout& layout, int ranks, const SavedParts& saved) {
    const auto weights = run(layout, ranks, 5, 15, &saved, nullptr);
    for (const auto& [name, expected] : straight) {
      EXPECT_TRUE(torch::allclose(weights.at(name), expected, 1e-9, 1e-11))
          << name << " at stage " << layout.stage << " on " << ranks << " ranks";
    }
  };
  const std::vector<Layout> offloaded = {{1, OffloadDevice::kCpu},
                                         {2, OffloadDevice::kCpu},
                                         {3, OffloadDevice::kCpu, OffloadDevice::kCpu},
                                         {3, OffloadDevice::kNvme},
                                         {3, OffloadDevice::kNvme, OffloadDevice::kCpu}};
  for (const Layout& from : offloaded) {
    SavedParts saved;
    run(from, 3, 0, 5, nullptr, &saved);
    for (const int ranks : {1, 2, 4}) {
      for (const int stage : {0, 1, 2, 3}) expect_straight(stage, ranks, saved);
      for (const Layout& to : offloaded) expect_straight(to, ranks, saved);
    }
  }
  for (const int stage : {0, 1, 2, 3}) {
    SavedParts saved;
    run(stage, 2, 0, 5, nullptr, &saved);
    for (const Layout& to : offloaded) expect_straight(to, 3, saved);
  }
}

// A plain optimizer's state and a sharded one's are the same thing.
TEST(ShardedState, IsThatOfAPlainOptimizer) {
  SavedParts saved;
  run(2, 3, 0, 5, nullptr, &saved);
  DoubleNet net;
  auto optimizer = make_optimizer(net);
  NamedTensors parameters;
  for (const auto& item : net->named_parameters()) parameters.emplace_back(item.key(), item.value());
  OptimizerState state{{}, saved.values};
  for (const auto& [name, tensor] : saved.tensors) {
    if (name.find('/') != std::string::npos) state.tensors.emplace_back(name, tensor);
  }
  load_optimizer_state(optimizer, parameters, state);
  const OptimizerState again = optimizer_state(optimizer, parameters);
  ASSERT_EQ(again.tensors.size(), state.tensors.size());
  for (const auto& [name, tensor] : again.tensors) {
    EXPECT_TRUE(same_bits(tensor, saved.tensors.at(name))) << name;
  }
}

TEST(ShardedState, RefusesAnotherOptimizer) {
  SavedParts saved;
  run(1, 2, 0, 2, nullptr, &saved);
  DoubleNet net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  ShardedModel model(net.ptr(), optimizer, Communicator());
  EXPECT_THAT(error_of([&] { model.load_optimizer(saved.values, saved.reader()); }),
              HasSubstr("another class of optimizer: AdamW there, SGD here"));
}

TEST(ShardedState, RefusesOtherGroups) {
  SavedParts saved;
  run(1, 2, 0, 2, nullptr, &saved);
  DoubleNet net;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->first->parameters());
  std::vector<at::Tensor> rest = net->second->parameters();
  for (const auto& parameter : net->out->parameters()) rest.push_back(parameter);
  groups.emplace_back(rest);
  torch::optim::AdamW optimizer(groups, torch::optim::AdamWOptions(0.02));
  ShardedModel model(net.ptr(), optimizer, Communicator());
  EXPECT_THAT(error_of([&] { model.load_optimizer(saved.values, saved.reader()); }),
              HasSubstr("another number of parameter groups: 1 there, 2 here"));
}

}  // namespace
}  // namespace lockstep
