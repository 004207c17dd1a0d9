// ShardedModel over real groups, with ranks as threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/error.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include "support/block_net.h"
#include "support/config_error.h"
#include "support/formula.h"
#include "support/group_case.h"
#include "support/sharded_training.h"

namespace lockstep {
namespace {

using test::batch_of;
using test::error_of;
using test::formula;
using test::GroupCase;
using test::make_adagrad;
using test::MakeOptimizer;
using test::run_group;
using test::same_bits;
using test::set_parameters;
using test::StageCase;
using test::UnknownOptimizer;
using testing::HasSubstr;

using BlockUnit = Sharded<test::BlockImpl>;

// A unit around units, with parameters of its own.
struct PairImpl : torch::nn::Module {
  explicit PairImpl(int64_t width)
      : first(register_module("first", BlockUnit(width))),
        second(register_module("second", BlockUnit(width))),
        scale(register_parameter("scale", torch::ones({width}))) {}
  torch::Tensor forward(torch::Tensor x) { return second(first(x)) * scale; }
  BlockUnit first, second;
  torch::Tensor scale;
};

struct PairNetImpl : torch::nn::Module {
  PairNetImpl()
      : in(register_module("in", torch::nn::Linear(3, 8))),
        pair(register_module("pair", Sharded<PairImpl>(8))),
        last(register_module("last", BlockUnit(8))),
        out(register_module("out", torch::nn::Linear(8, 2))) {
    set_parameters(*this);
  }
  torch::Tensor forward(torch::Tensor x) { return out(last(pair(torch::tanh(in(x))))); }
  torch::nn::Linear in;
  Sharded<PairImpl> pair;
  BlockUnit last;
  torch::nn::Linear out;
};
TORCH_MODULE(PairNet);

std::unique_ptr<torch::optim::Optimizer> make_sgd(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}
std::unique_ptr<torch::optim::Optimizer> make_adam(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::Adam>(std::move(parameters), torch::optim::AdamOptions(0.01));
}

// What DataParallel makes of the same training.
std::vector<at::Tensor> reference(const Communicator& group, MakeOptimizer make, int steps,
                                  int micro_batches = 1) {
  PairNet net;
  DataParallel model(net, group);
  const auto optimizer = make(net->parameters());
  for (int step = 0; step < steps; ++step) {
    model.zero_grad();
    for (int micro = 0; micro < micro_batches; ++micro) {
      std::optional<GradientSync::NoSync> scope;
      if (micro + 1 < micro_batches) scope.emplace(model.no_sync());
      model.forward(batch_of(group.rank(), step * micro_batches + micro)).square().mean().backward();
    }
    optimizer->step();
  }
  return net->parameters();
}

void expect_parameters(ShardedModel& model, const PairNet& net, const std::vector<at::Tensor>& expected) {
  const auto scope = model.gather_parameters();
  const auto parameters = net->parameters();
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(same_bits(parameters[i], expected[i])) << "parameter " << i;
  }
}

class ShardedModelTest : public testing::TestWithParam<StageCase> {
 protected:
  // Small buckets and no small parameters: all paths are taken.
  ShardedOptions options() const {
    return {.zero = {.stage = GetParam().stage, .bucket_cap_bytes = 300, .persistence_threshold = 9}};
  }
  void run(const std::function<void(Communicator&)>& body) { run_group(GetParam().group, body); }
};

TEST_P(ShardedModelTest, TrainsAsDataParallelBitForBit) {
  for (const MakeOptimizer make : {make_sgd, make_adam, make_adagrad}) {
    run([&](Communicator& group) {
      const auto expected = reference(group, make, 5);
      PairNet net;
      const auto optimizer = make(net->parameters());
      ShardedOptions overlapping = options();
      overlapping.zero.overlap_gather = make != make_adam;
      ShardedModel model(net.ptr(), *optimizer, group, overlapping);
      for (int step = 0; step < 5; ++step) {
        model.zero_grad();
        model.prepare_forward();
        net->forward(batch_of(group.rank(), step)).square().mean().backward();
        model.step();
      }
      expect_parameters(model, net, expected);
    });
  }
}

TEST_P(ShardedModelTest, AddsUpMicroBatchesWithoutSync) {
  run([&](Communicator& group) {
    const auto expected = reference(group, make_sgd, 4, 3);
    PairNet net;
    const auto optimizer = make_sgd(net->parameters());
    ShardedModel model(net.ptr(), *optimizer, group, options());
    for (int step = 0; step < 4; ++step) {
      model.zero_grad();
      for (int micro = 0; micro < 3; ++micro) {
        std::optional<GradientSync::NoSync> scope;
        if (micro < 2) scope.emplace(model.no_sync());
        model.prepare_forward();
        net->forward(batch_of(group.rank(), step * 3 + micro)).square().mean().backward();
      }
      model.step();
    }
    expect_parameters(model, net, expected);
  });
}

TEST_P(ShardedModelTest, ReducesEveryMicroBatchFromStage2On) {
  run([&](Communicator& group) {
    PairNet net;
    const auto optimizer = make_sgd(net->parameters());
    ShardedModel model(net.ptr(), *optimizer, group, options());
    const auto backward = [&](int step) {
      model.prepare_forward();
      net->forward(batch_of(group.rank(), step)).square().mean().backward();
    };
    backward(0);
    if (GetParam().stage < 2) {
      EXPECT_THAT(error_of([&] { backward(1); }), HasSubstr("no_sync()"));
      return;
    }
    std::vector<at::Tensor> sums;
    for (const at::Tensor& gradient : model.flat_gradients()) sums.push_back(gradient.clone());
    model.zero_grad();
    backward(1);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += model.flat_gradients()[i];
    model.zero_grad();
    backward(0);
    backward(1);
    for (size_t i = 0; i < sums.size(); ++i) EXPECT_TRUE(same_bits(sums[i], model.flat_gradients()[i]));
  });
}

TEST_P(ShardedModelTest, ClipsByTheNormOfAllParts) {
  for (const double type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    run([&](Communicator& group) {
      PairNet whole;
      DataParallel expected(whole, group);
      expected.forward(batch_of(group.rank(), 0)).square().mean().backward();
      const double norm = expected.clip_grad_norm(0.01, type).item<double>();
      double sum = 0;
      for (const auto& parameter : whole->parameters()) sum += parameter.grad().sum().item<double>();

      PairNet net;
      const auto optimizer = make_sgd(net->parameters());
      ShardedModel model(net.ptr(), *optimizer, group, options());
      model.prepare_forward();
      net->forward(batch_of(group.rank(), 0)).square().mean().backward();
      EXPECT_NEAR(model.clip_grad_norm(0.01, type).item<double>(), norm, 1e-5 * norm);
      double parts = 0;
      for (const auto& gradient : model.flat_gradients()) parts += gradient.sum().item<double>();
      if (GetParam().stage > 0) {
        at::Tensor total = at::full({1}, parts, at::kDouble);
        group.all_reduce(total).wait();
        parts = total.item<double>();
      }
      EXPECT_NEAR(parts, sum, 1e-6);
    });
  }
}

TEST_P(ShardedModelTest, Bf16KeepsMastersInFloat32) {
  run([&](Communicator& group) {
    PairNet net;
    net->to(at::kBFloat16);
    // The same by hand: one rank, float32 masters, mean gradients in bf16.
    PairNet twin;
    twin->to(at::kBFloat16);
    DataParallel expected(twin, group);
    std::vector<at::Tensor> masters;
    for (const auto& parameter : twin->parameters()) masters.push_back(parameter.detach().to(at::kFloat));
    torch::optim::SGD by_hand(masters, torch::optim::SGDOptions(0.1).momentum(0.9));

    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    ShardedModel model(net.ptr(), optimizer, group, options());
    for (int step = 0; step < 4; ++step) {
      const at::Tensor input = batch_of(group.rank(), step).to(at::kBFloat16);
      expected.zero_grad();
      expected.forward(input).square().mean().backward();
      {
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < masters.size(); ++i) {
          masters[i].mutable_grad() = twin->parameters()[i].grad().to(at::kFloat);
        }
        by_hand.step();
        for (size_t i = 0; i < masters.size(); ++i) twin->parameters()[i].copy_(masters[i]);
      }
      model.zero_grad();
      model.prepare_forward();
      net->forward(input).square().mean().backward();
      model.step();
    }
    expect_parameters(model, net, twin->parameters());
    // Looking at parameters must not cost the masters their digits.
    std::map<std::string, at::Tensor> by_name;
    for (const auto& item : twin->named_parameters()) by_name[item.key()] = masters[by_name.size()];
    for (const auto& owned : model.master_parts()) {
      EXPECT_EQ(owned.data.scalar_type(), at::kFloat);
      EXPECT_TRUE(
          same_bits(owned.data, by_name.at(owned.name).flatten().narrow(0, owned.first, owned.data.numel())))
          << owned.name;
    }
  });
}

TEST_P(ShardedModelTest, GroupsKeepTheirOptions) {
  run([&](Communicator& group) {
    const auto groups_of = [](const PairNet& net) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(net->in->parameters(), std::make_unique<torch::optim::SGDOptions>(0.5));
      std::vector<at::Tensor> rest = net->pair->parameters();
      for (const auto& more : {net->last->parameters(), net->out->parameters()}) {
        rest.insert(rest.end(), more.begin(), more.end());
      }
      groups.emplace_back(rest, std::make_unique<torch::optim::SGDOptions>(0.01));
      return groups;
    };
    PairNet whole;
    DataParallel expected(whole, group);
    torch::optim::SGD plain(groups_of(whole), torch::optim::SGDOptions(1));
    expected.forward(batch_of(group.rank(), 0)).square().mean().backward();
    plain.step();

    PairNet net;
    torch::optim::SGD optimizer(groups_of(net), torch::optim::SGDOptions(1));
    ShardedModel model(net.ptr(), optimizer, group, options());
    model.prepare_forward();
    net->forward(batch_of(group.rank(), 0)).square().mean().backward();
    model.step();
    expect_parameters(model, net, whole->parameters());
  });
}

TEST_P(ShardedModelTest, WrittenParametersCount) {
  run([&](Communicator& group) {
    PairNet net;
    const auto optimizer = make_sgd(net->parameters());
    ShardedModel model(net.ptr(), *optimizer, group, options());
    {
      const auto scope = model.gather_parameters();
      const torch::NoGradGuard no_grad;
      for (const auto& parameter : net->parameters()) parameter.fill_(0.25);
    }
    for (const auto& owned : model.master_parts()) {
      EXPECT_TRUE(owned.data.eq(0.25).all().item<bool>()) << owned.name;
    }
    const auto scope = model.gather_parameters();
    for (const auto& parameter : net->parameters()) EXPECT_TRUE(parameter.eq(0.25).all().item<bool>());
  });
}

TEST_P(ShardedModelTest, EvaluationNeedsNoGradients) {
  run([&](Communicator& group) {
    PairNet whole;
    PairNet net;
    const auto optimizer = make_sgd(net->parameters());
    ShardedModel model(net.ptr(), *optimizer, group, options());
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 2; ++i) {
      model.prepare_forward();
      EXPECT_TRUE(same_bits(net->forward(batch_of(0, i)), whole->forward(batch_of(0, i))));
    }
  });
}

TEST_P(ShardedModelTest, PredivideAndOtherDtypesOfCommunication) {
  run([&](Communicator& group) {
    const auto gradients_with = [&](double factor, std::optional<at::ScalarType> dtype) {
      PairNet net;
      const auto optimizer = make_sgd(net->parameters());
      ShardedOptions changed = options();
      changed.gradient_predivide_factor = factor;
      changed.communication_dtype = dtype;
      ShardedModel model(net.ptr(), *optimizer, group, changed);
      model.prepare_forward();
      net->forward(batch_of(group.rank(), 0)).square().mean().backward();
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& gradient : model.flat_gradients()) gradients.push_back(gradient.clone());
      return gradients;
    };
    const auto plain = gradients_with(1, {});
    const auto predivided = gradients_with(4, {});
    const auto wide = gradients_with(1, at::kDouble);
    const auto narrow = gradients_with(2, at::kBFloat16);
    bool rounded = false;
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(torch::allclose(plain[i], predivided[i], 1e-6, 1e-9));
      EXPECT_TRUE(torch::allclose(plain[i], wide[i], 1e-6, 1e-9));
      EXPECT_TRUE(torch::allclose(plain[i], narrow[i], 2e-2, 1e-3));
      rounded |= !same_bits(plain[i], narrow[i]);
    }
    // Later ranks may own nothing but padding.
    if (group.rank() == 0) EXPECT_TRUE(rounded);
  });
}

std::vector<StageCase> cases() {
  std::vector<StageCase> cases;
  for (const GroupCase& group : {GroupCase{"gloo", {0}}, GroupCase{"shm", {0, 0}}, GroupCase{"gloo", {0, 0}},
                                 GroupCase{"shm", {0, 0, 0}}, GroupCase{"auto", {0, 0, 1}}}) {
    for (const int stage : {0, 1, 2, 3}) cases.push_back({group, stage});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Groups, ShardedModelTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name(); });

TEST(ShardedModel, Stage3HoldsNothingWholeBetweenSteps) {
  run_group({"shm", {0, 0}}, [](Communicator& group) {
    PairNet net;
    const auto optimizer = make_adam(net->parameters());
    ShardedModel model(net.ptr(), *optimizer, group, {.zero = {.stage = 3, .persistence_threshold = 0}});
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(net->last->up->weight.numel(), 0);
      model.zero_grad();
      model.prepare_forward();
      net->forward(batch_of(group.rank(), step)).square().mean().backward();
      // The gradients are there, the parameters gone, before step().
      EXPECT_EQ(net->last->up->weight.numel(), 0);
      EXPECT_FALSE(net->last->up->weight.grad().defined());
      model.step();
    }
    PairNet whole;
    int64_t elements = 0;
    for (const auto& parameter : whole->parameters()) elements += parameter.numel();
    // Parts are padded to whole cache lines in each bucket.
    const auto memory = model.memory();
    EXPECT_GE(memory.parameters, elements * 4 / 2);
    EXPECT_LE(memory.parameters, elements * 4 / 2 + 20 * 64 * 4);
    EXPECT_EQ(memory.gradients, memory.parameters);
    EXPECT_EQ(memory.optimizer, 2 * memory.parameters);
    EXPECT_EQ(memory.master, 0);
  });
}

TEST(ShardedModel, UsesAUnitTwiceInAForward) {
  run_group({"shm", {0, 0}}, [](Communicator& group) {
    const auto loss_of = [&](BlockUnit& block, const at::Tensor& input) {
      return block(torch::tanh(block(input))).square().mean();
    };
    BlockUnit whole(8);
    set_parameters(*whole);
    DataParallel expected(whole.ptr(), group);
    expected.prepare_forward();
    const at::Tensor input = formula({4, 8}, group.rank());
    loss_of(whole, input).backward();
    torch::optim::SGD plain(whole->parameters(), 0.1);
    plain.step();

    BlockUnit block(8);
    set_parameters(*block);
    torch::optim::SGD optimizer(block->parameters(), 0.1);
    ShardedModel model(block.ptr(), optimizer, group, {.zero = {.stage = 3, .persistence_threshold = 0}});
    model.prepare_forward();
    loss_of(block, input).backward();
    model.step();
    const auto scope = model.gather_parameters();
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(same_bits(block->parameters()[i], whole->parameters()[i]));
    }
  });
}

TEST(ShardedModel, RefusesWhatCannotBeDivided) {
  PairNet net;
  const auto refusal = [&](torch::optim::Optimizer& optimizer, ShardedOptions options) {
    return error_of([&] { ShardedModel(net.ptr(), optimizer, Communicator(), options); });
  };
  torch::optim::LBFGS lbfgs(net->parameters());
  EXPECT_THAT(refusal(lbfgs, {}), HasSubstr("LBFGS looks at whole parameters together"));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  EXPECT_THAT(refusal(sgd, {.zero = {.stage = 4}}), HasSubstr("zero.stage must be 0, 1, 2 or 3: 4"));
  EXPECT_THAT(refusal(sgd, {.zero = {.bucket_cap_bytes = 0}}),
              HasSubstr("zero.bucket_cap_bytes must be at least 1: 0"));
  torch::optim::SGD partly(net->in->parameters(), 0.1);
  EXPECT_THAT(refusal(partly, {}), HasSubstr("not in the optimizer; freeze it"));
  auto more = net->parameters();
  more.push_back(torch::ones({3, 4}, torch::requires_grad()));
  torch::optim::SGD strange(more, 0.1);
  EXPECT_THAT(refusal(strange, {}), HasSubstr("that the model does not have, of shape [3, 4]"));
  for (const auto& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
  torch::optim::Adam used(net->parameters());
  used.step();
  EXPECT_THAT(refusal(used, {}), HasSubstr("has a state already"));
}

TEST(ShardedModel, AsksBeforeItTakesAnUnknownOptimizer) {
  PairNet net;
  UnknownOptimizer optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  EXPECT_THAT(error_of([&] { ShardedModel(net.ptr(), optimizer, Communicator()); }),
              HasSubstr("set allow_untested_optimizer if it does"));
  ShardedModel(net.ptr(), optimizer, Communicator(), {.allow_untested_optimizer = true});
}

TEST(ShardedModel, PartsOfAllRanksAreTheWhole) {
  for (const int stage : {0, 1, 3}) {
    std::vector<std::map<std::string, int64_t>> counts(3);
    run_group({"shm", {0, 0, 0}}, [&](Communicator& group) {
      PairNet net;
      const auto optimizer = make_sgd(net->parameters());
      ShardedModel model(net.ptr(), *optimizer, group,
                         {.zero = {.stage = stage, .persistence_threshold = 0}});
      for (const auto& owned : model.master_parts()) {
        counts[static_cast<size_t>(group.rank())][owned.name] += owned.data.numel();
      }
    });
    PairNet net;
    for (const auto& item : net->named_parameters()) {
      int64_t sum = 0;
      for (auto& of_rank : counts) sum += of_rank[item.key()];
      EXPECT_EQ(sum, item.value().numel() * (stage == 0 ? 3 : 1)) << item.key();
    }
  }
}

}  // namespace
}  // namespace lockstep
