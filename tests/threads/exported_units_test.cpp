// The modules of an exported program as units of stage 3, with ranks as threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/exported_model.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "support/config_error.h"
#include "support/formula.h"
#include "support/golden.h"
#include "support/group_case.h"
#include "support/parameter_copies.h"

namespace lockstep {
namespace {

using test::copies;
using test::error_of;
using test::expect_same;
using test::formula;
using test::GroupCase;
using test::run_group;
using test::set_parameters;
using testing::HasSubstr;

ShardedOptions exported_options(bool prefetch) {
  return {.zero = {.stage = 3, .persistence_threshold = 0, .prefetch = prefetch}};
}

std::string blocks_file() { return test::exported_file("blocks"); }

// Parameters after three steps of a rank.
std::vector<at::Tensor> train_sharded(Communicator& group, const std::string& shard_by,
                                      const std::string& recompute_by, bool prefetch) {
  ExportedModel net(blocks_file());
  set_parameters(*net);
  net->shard_by(shard_by);
  net->recompute_by(recompute_by);
  net->eval();  // the threads share the random numbers of dropout
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  ShardedModel model(net.ptr(), optimizer, group, exported_options(prefetch));
  for (int step = 0; step < 3; ++step) {
    model.zero_grad();
    model.prepare_forward();
    net->forward(formula({6, 4}, 10 * step + group.rank())).square().mean().backward();
    model.step();
  }
  const auto complete = model.gather_parameters();
  return copies(net->parameters());
}

// Bytes of the largest unit, and of what belongs to no unit.
struct UnitBytes {
  int64_t root = 0;
  int64_t largest = 0;
  size_t units = 0;
};

UnitBytes bytes_by_unit(const ZeroPlan& plan) {
  std::vector<int64_t> bytes(16);
  UnitBytes result;
  for (const ZeroPlan::Bucket& bucket : plan.buckets) {
    bytes.at(bucket.unit) += (bucket.elements + bucket.padding) * 4;
    result.units = std::max(result.units, bucket.unit);
  }
  result.root = bytes[0];
  result.largest = *std::max_element(bytes.begin() + 1, bytes.end());
  return result;
}

class ExportedUnitsTest : public testing::TestWithParam<GroupCase> {
 protected:
  void run(const std::function<void(Communicator&)>& body) { run_group(GetParam(), body); }
};

TEST_P(ExportedUnitsTest, ModulesOneAfterTheOtherGiveTheBitsOfTheWholeModel) {
  run([](Communicator& group) {
    const std::vector<at::Tensor> expected = train_sharded(group, "", "", true);
    for (const char* const pattern : {"auto", "blocks.*", "*,blocks.*.*"}) {
      SCOPED_TRACE(pattern);
      expect_same(train_sharded(group, pattern, "", true), expected);
      expect_same(train_sharded(group, pattern, "", false), expected);
      expect_same(train_sharded(group, pattern, "auto", true), expected);
    }
  });
}

TEST_P(ExportedUnitsTest, NoMoreIsGatheredThanTheLargestModule) {
  run([](Communicator& group) {
    const auto gathered = [&](const std::string& pattern, UnitBytes& units) {
      ExportedModel net(blocks_file());
      net->shard_by(pattern);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
      const ZeroPlan plan = plan_zero(*net, optimizer, group.size(), exported_options(false));
      units = bytes_by_unit(plan);
      ShardedModel model(net.ptr(), optimizer, group, exported_options(false));
      model.prepare_evaluation();
      {
        const torch::NoGradGuard no_grad;
        net->forward(formula({6, 4}, group.rank()));
      }
      const int64_t bytes = model.memory().buffers;  // that were lent, and are kept for the next use
      for (int step = 0; step < 2; ++step) {
        model.zero_grad();
        model.prepare_forward();
        net->forward(formula({6, 4}, group.rank())).square().mean().backward();
        model.step();
      }
      EXPECT_EQ(model.memory().buffers, plan.memory.buffers);
      return bytes;
    };
    UnitBytes units;
    const int64_t by_block = gathered("auto", units);
    EXPECT_EQ(units.units, 3);
    EXPECT_EQ(by_block, units.root + units.largest);
    UnitBytes whole;
    const int64_t at_once = gathered("", whole);
    EXPECT_EQ(at_once, whole.root);
    EXPECT_GT(at_once, by_block);
  });
}

TEST_P(ExportedUnitsTest, ParametersOfUnitsAreFreeBetweenTheirForwardAndBackward) {
  run([](Communicator& group) {
    ExportedModel net(blocks_file());
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    ShardedModel model(net.ptr(), optimizer, group, exported_options(false));
    model.prepare_forward();
    const at::Tensor loss = net->forward(formula({6, 4}, group.rank())).square().mean();
    const auto parameters = net->named_parameters();
    EXPECT_EQ(parameters["blocks.0.grow.weight"].numel(), 0);
    EXPECT_EQ(parameters["blocks.1.norm.bias"].numel(), 0);
    EXPECT_EQ(parameters["embed.weight"].numel(), 16);  // tied: of the model
    loss.backward();
    EXPECT_EQ(parameters["blocks.2.grow.weight"].numel(), 0);
    EXPECT_THAT(error_of([&] { net->shard_by(""); }), HasSubstr("after a trainer has the model"));
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, ExportedUnitsTest,
                         testing::Values(GroupCase{"gloo", {0}}, GroupCase{"shm", {0, 0}},
                                         GroupCase{"gloo", {0, 0}}),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace lockstep
