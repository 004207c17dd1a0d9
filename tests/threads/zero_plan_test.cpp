// What is planned is what a training holds, with ranks as threads.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include "support/config_error.h"
#include "support/formula.h"
#include "support/group_case.h"

namespace lockstep {
namespace {

using test::error_of;
using test::formula;
using test::run_group;
using testing::HasSubstr;

struct PlannedInnerImpl : torch::nn::Module {
  explicit PlannedInnerImpl(int64_t width) : fc(register_module("fc", torch::nn::Linear(width, width))) {}
  torch::Tensor forward(torch::Tensor x) { return torch::tanh(fc(x)); }
  torch::nn::Linear fc;
};
using PlannedInner = Sharded<PlannedInnerImpl>;

// A unit with a unit inside where `nested`.
struct PlannedBlockImpl : torch::nn::Module {
  PlannedBlockImpl(int64_t width, bool nested)
      : in(register_module("in", torch::nn::Linear(width, 2 * width))),
        out(register_module("out", torch::nn::Linear(2 * width, width))) {
    if (nested) inner = register_module("inner", PlannedInner(width));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = out(torch::tanh(in(x)));
    return inner ? inner(x) : x;
  }
  torch::nn::Linear in, out;
  PlannedInner inner{nullptr};
};
using PlannedBlock = Sharded<PlannedBlockImpl>;

struct PlannedNetImpl : torch::nn::Module {
  explicit PlannedNetImpl(bool nested) : first(register_module("first", torch::nn::Linear(8, 24))) {
    for (int i = 0; i < 5; ++i) {
      blocks.push_back(register_module(fmt::format("block{}", i), PlannedBlock(24, nested)));
    }
    last = register_module("last", torch::nn::Linear(24, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = first(x);
    for (PlannedBlock& block : blocks) x = block(x);
    return last(x);
  }
  torch::nn::Linear first;
  std::vector<PlannedBlock> blocks;
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(PlannedNet);

using MakeForModule = std::function<std::unique_ptr<torch::optim::Optimizer>(torch::nn::Module&)>;

std::unique_ptr<torch::optim::Optimizer> adam(torch::nn::Module& module) {
  return std::make_unique<torch::optim::Adam>(module.parameters(), torch::optim::AdamOptions(1e-3));
}

struct PlanCase {
  int ranks = 1;
  c10::ScalarType dtype = at::kFloat;
  ShardedOptions options = {};
  bool nested = false;
  MakeForModule make = adam;

  std::string text() const {
    return fmt::format("{} ranks, {}, stage {}, threshold {}, bucket {}, nested {}", ranks,
                       c10::toString(dtype), options.zero.stage, options.zero.persistence_threshold,
                       options.zero.bucket_cap_bytes, nested);
  }
};

ZeroPlan plan_of(const PlanCase& c) {
  PlannedNet net(c.nested);
  const auto optimizer = c.make(*net);
  net->to(c.dtype);
  return plan_zero(*net, *optimizer, c.ranks, c.options);
}

ShardedModel::Memory measure(const PlanCase& c) {
  ShardedModel::Memory memory;
  run_group({"gloo", std::vector<int>(static_cast<size_t>(c.ranks), 0)}, [&](Communicator& group) {
    PlannedNet net(c.nested);
    const auto optimizer = c.make(*net);  // CpuAdam is made for float32, which masters have
    net->to(c.dtype);
    ShardedModel model(net.ptr(), *optimizer, group, c.options);
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      model.prepare_forward();
      net->forward(formula({2, 8}, group.rank()).to(c.dtype)).sum().backward();
      model.step();
    }
    if (group.rank() == group.size() - 1) memory = model.memory();
  });
  return memory;
}

void expect_planned(const PlanCase& c) {
  SCOPED_TRACE(c.text());
  const ShardedModel::Memory planned = plan_of(c).memory;
  const ShardedModel::Memory measured = measure(c);
  EXPECT_EQ(planned.parameters, measured.parameters);
  EXPECT_EQ(planned.gradients, measured.gradients);
  EXPECT_EQ(planned.master, measured.master);
  EXPECT_EQ(planned.optimizer, measured.optimizer);
  EXPECT_EQ(planned.buffers, measured.buffers);
}

TEST(ZeroPlan, IsWhatATrainingHolds) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        expect_planned({.ranks = ranks, .dtype = dtype, .options = {.zero = {.stage = stage}}});
        expect_planned(
            {.ranks = ranks,
             .dtype = dtype,
             .options = {.zero = {.stage = stage, .bucket_cap_bytes = 4096, .persistence_threshold = 100}}});
      }
    }
  }
}

TEST(ZeroPlan, OfUnitsInsideOfUnits) {
  for (const bool prefetch : {false, true}) {
    for (const int64_t threshold : {0, 100}) {
      expect_planned(
          {.ranks = 2,
           .options = {.zero = {.stage = 3, .persistence_threshold = threshold, .prefetch = prefetch}},
           .nested = true});
    }
  }
}

TEST(ZeroPlan, OfWhatIsReducedAtTheEndOnly) {
  expect_planned(
      {.ranks = 2,
       .options = {.zero = {.stage = 3, .persistence_threshold = 0}, .find_unused_parameters = true}});
}

TEST(ZeroPlan, KnowsTheStateOfEveryOptimizer) {
  using torch::optim::SGDOptions;
  const std::vector<MakeForModule> makers = {
      [](auto& m) { return std::make_unique<torch::optim::SGD>(m.parameters(), SGDOptions(0.1)); },
      [](auto& m) {
        return std::make_unique<torch::optim::SGD>(m.parameters(), SGDOptions(0.1).momentum(0.9));
      },
      [](auto& m) { return std::make_unique<torch::optim::Adagrad>(m.parameters()); },
      [](auto& m) { return std::make_unique<torch::optim::RMSprop>(m.parameters()); },
      [](auto& m) {
        return std::make_unique<torch::optim::AdamW>(m.parameters(),
                                                     torch::optim::AdamWOptions().amsgrad(true));
      },
      [](auto& m) { return make_cpu_adam(m.parameters(), {.lr = 1e-3}); },
  };
  for (const MakeForModule& make : makers) {
    expect_planned({.ranks = 2, .dtype = at::kBFloat16, .options = {.zero = {.stage = 1}}, .make = make});
  }
}

TEST(ZeroPlan, LeavesTheOptimizerAsItWas) {
  PlannedNet net(false);
  torch::optim::Adagrad optimizer(net->parameters());
  const size_t states = optimizer.state().size();
  plan_zero(*net, optimizer, 4, {.zero = {.stage = 2}});
  EXPECT_EQ(optimizer.state().size(), states);
  ASSERT_EQ(optimizer.param_groups()[0].params().size(), net->parameters().size());
  EXPECT_TRUE(optimizer.param_groups()[0].params()[0].is_same(net->parameters()[0]));
}

// 4 + 12/N, 2 + 14/N and 16/N bytes a parameter, but for padding and buffers.
TEST(ZeroPlan, FollowsTheFormulas) {
  for (const int ranks : {1, 8, 64}) {
    for (int stage = 1; stage <= 3; ++stage) {
      const ZeroPlan plan = plan_of({.ranks = ranks,
                                     .dtype = at::kBFloat16,
                                     .options = {.zero = {.stage = stage, .persistence_threshold = 0}}});
      const double n = ranks;
      const double formula = stage == 1 ? 4 + 12 / n : stage == 2 ? 2 + 14 / n : 16 / n;
      int64_t padding = 0;
      for (const auto& bucket : plan.buckets) padding += bucket.padding;
      const double held = static_cast<double>(plan.memory.total() - plan.memory.buffers);
      EXPECT_NEAR(held, formula * static_cast<double>(plan.elements + padding), 1) << ranks << " " << stage;
    }
  }
}

TEST(ZeroPlan, NamesEveryParameterOnce) {
  const ZeroPlan plan =
      plan_of({.ranks = 4, .options = {.zero = {.stage = 3, .persistence_threshold = 100}}});
  std::vector<std::string> names;
  int64_t elements = 0;
  for (const auto& bucket : plan.buckets) {
    names.insert(names.end(), bucket.parameters.begin(), bucket.parameters.end());
    elements += bucket.elements;
    EXPECT_EQ(bucket.part * 4, bucket.elements + bucket.padding);
    EXPECT_EQ(bucket.unit > 0, !bucket.resident && bucket.parameters[0].starts_with("block"));
  }
  EXPECT_EQ(elements, plan.elements);
  std::vector<std::string> expected;
  for (const auto& item : PlannedNet(false)->named_parameters()) expected.push_back(item.key());
  EXPECT_THAT(names, testing::UnorderedElementsAreArray(expected));
}

TEST(ZeroPlan, RefusesWhatATrainingWouldRefuse) {
  PlannedNet net(false);
  torch::optim::LBFGS optimizer(net->parameters());
  EXPECT_THAT(error_of([&] { plan_zero(*net, optimizer, 2, {}); }), HasSubstr("LBFGS"));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  EXPECT_THAT(error_of([&] { plan_zero(*net, sgd, 0, {}); }), HasSubstr("number of ranks"));
  EXPECT_THAT(error_of([&] { plan_zero(*net, sgd, 2, {.zero = {.stage = 4}}); }), HasSubstr("stage must be"));
}

}  // namespace
}  // namespace lockstep
