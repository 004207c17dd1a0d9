// States of ShardedModel between stages and world sizes, with ranks as threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/optimizer_state.h>
#include <lockstep/sharded.h>
#include <lockstep/sharded_model.h>
#include <torch/torch.h>

#include <mutex>

#include "support/config_error.h"
#include "support/formula.h"
#include "support/group_case.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using test::error_of;
using test::formula;
using test::GroupCase;
using test::run_group;
using test::same_bits;
using test::set_parameters;
using test::TemporaryFolder;
using testing::HasSubstr;

struct BlockImpl : torch::nn::Module {
  BlockImpl() : fc(register_module("fc", torch::nn::Linear(6, 6))) {}
  torch::Tensor forward(torch::Tensor x) { return torch::tanh(fc(x)); }
  torch::nn::Linear fc;
};

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", Sharded<BlockImpl>())),
        second(register_module("second", Sharded<BlockImpl>())),
        out(register_module("out", torch::nn::Linear(6, 1))) {
    to(torch::kFloat64);
    set_parameters(*this);
  }
  torch::Tensor forward(torch::Tensor x) { return out(second(first(x))); }
  Sharded<BlockImpl> first, second;
  torch::nn::Linear out;
};
TORCH_MODULE(Net);

// What a checkpoint would hold: whole tensors by name, put together from parts.
struct Saved {
  std::mutex mutex;
  std::map<std::string, at::Tensor> tensors;
  std::string values;

  void add(const std::vector<ShardedModel::Part>& parts) {
    const std::lock_guard lock(mutex);
    for (const auto& part : parts) {
      at::Tensor& whole = tensors[part.name];
      if (!whole.defined()) whole = at::full(part.shape, std::nan(""), part.data.options());
      whole.view(-1).narrow(0, part.first, part.data.numel()).copy_(part.data);
    }
  }
  void take(const ShardedModel& model) {
    add(model.parameter_parts());
    const auto optimizer = model.optimizer_parts();
    add(optimizer.parts);
    const std::lock_guard lock(mutex);
    values = optimizer.values;
  }
  ShardedModel::ReadParts reader() const {
    return [this](const std::vector<ShardedModel::Part>& parts) {
      for (const auto& part : parts) {
        part.data.copy_(tensors.at(part.name).view(-1).narrow(0, part.first, part.data.numel()));
      }
    };
  }
};

// Twelve samples a step, whatever the number of ranks.
at::Tensor share_of(const Communicator& group, int step) {
  const int64_t count = 12 / group.size();
  return formula({12, 6}, 50 + step).to(torch::kFloat64).narrow(0, count * group.rank(), count);
}

void train(ShardedModel& model, Net& net, int from, int to) {
  for (int step = from; step < to; ++step) {
    model.zero_grad();
    model.prepare_forward();
    net->forward(share_of(model.communicator(), step)).square().mean().backward();
    model.clip_grad_norm(0.5);
    model.step();
  }
}

torch::optim::AdamW make_optimizer(const Net& net) {
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
  ShardedOptions options{.stage = layout.stage, .bucket_cap_bytes = 200, .persistence_threshold = 7};
  options.offload_optimizer.device = layout.optimizer;
  options.offload_optimizer.nvme_path = folder.path();
  options.offload_param.device = layout.parameters;
  return options;
}

GroupCase group_of(int ranks) { return {"shm", std::vector<int>(static_cast<size_t>(ranks), 0)}; }

std::map<std::string, at::Tensor> run(const Layout& layout, int ranks, int from, int to, const Saved* start,
                                      Saved* end) {
  const TemporaryFolder folder;
  std::map<std::string, at::Tensor> weights;
  run_group(group_of(ranks), [&](Communicator& group) {
    Net net;
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
  Saved saved;
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
  Saved saved;
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
  const auto expect_straight = [&](const Layout& layout, int ranks, const Saved& saved) {
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
    Saved saved;
    run(from, 3, 0, 5, nullptr, &saved);
    for (const int ranks : {1, 2, 4}) {
      for (const int stage : {0, 1, 2, 3}) expect_straight(stage, ranks, saved);
      for (const Layout& to : offloaded) expect_straight(to, ranks, saved);
    }
  }
  for (const int stage : {0, 1, 2, 3}) {
    Saved saved;
    run(stage, 2, 0, 5, nullptr, &saved);
    for (const Layout& to : offloaded) expect_straight(to, 3, saved);
  }
}

// A plain optimizer's state and a sharded one's are the same thing.
TEST(ShardedState, IsThatOfAPlainOptimizer) {
  Saved saved;
  run(2, 3, 0, 5, nullptr, &saved);
  Net net;
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
  Saved saved;
  run(1, 2, 0, 2, nullptr, &saved);
  Net net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  ShardedModel model(net.ptr(), optimizer, Communicator());
  EXPECT_THAT(error_of([&] { model.load_optimizer(saved.values, saved.reader()); }),
              HasSubstr("another class of optimizer: AdamW there, SGD here"));
}

TEST(ShardedState, RefusesOtherGroups) {
  Saved saved;
  run(1, 2, 0, 2, nullptr, &saved);
  Net net;
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
