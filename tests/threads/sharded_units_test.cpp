// When the units of a divided model (stage 3) are whole, with ranks as threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include <future>
#include <optional>

#include "support/config_error.h"
#include "support/formula.h"
#include "support/group_case.h"
#include "support/parameter_copies.h"
#include "train/measured_memory.h"

namespace lockstep {
namespace {

using test::copies;
using test::error_of;
using test::expect_same;
using test::formula;
using test::GroupCase;
using test::run_group;
using test::same_bits;
using test::set_parameters;
using testing::HasSubstr;

struct LayerImpl : torch::nn::Module {
  LayerImpl() : fc(register_module("fc", torch::nn::Linear(8, 8))) {}
  torch::Tensor forward(torch::Tensor x) { return torch::tanh(fc(x)); }
  torch::nn::Linear fc;
};
using Layer = Sharded<LayerImpl>;

struct LayerNetImpl : torch::nn::Module {
  LayerNetImpl()
      : first(register_module("first", Layer())),
        second(register_module("second", Layer())),
        out(register_module("out", torch::nn::Linear(8, 2))) {
    set_parameters(*this);
  }
  torch::Tensor forward(torch::Tensor x) { return out(second(first(x))); }
  // Another way through on odd ranks.
  torch::Tensor forward_by_rank(const torch::Tensor& x, int rank) {
    return out(rank % 2 == 0 ? torch::linear(first(second(x)), first_head, {})
                             : torch::linear(first(second(x)), second_head, {}));
  }
  void add_heads() {
    first_head = register_parameter("first_head", formula({8, 8}, 1));
    second_head = register_parameter("second_head", formula({8, 8}, 2));
  }
  Layer first, second;
  torch::nn::Linear out;
  torch::Tensor first_head, second_head;
};
TORCH_MODULE(LayerNet);

const ShardedOptions kStage3{.zero = {.stage = 3, .persistence_threshold = 0}};

at::Tensor batch_of(const Communicator& group, int step = 0) {
  return formula({4, 8}, 10 * step + group.rank());
}

class ShardedUnitsTest : public testing::TestWithParam<GroupCase> {
 protected:
  void run(const std::function<void(Communicator&)>& body) { run_group(GetParam(), body); }
};

TEST_P(ShardedUnitsTest, NothingTakesParametersFromWhoHoldsThem) {
  run([](Communicator& group) {
    LayerNet whole;
    const auto expected = copies(whole->parameters());
    LayerNet net;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    ShardedModel model(net.ptr(), optimizer, group, kStage3);
    {
      const auto outer = model.gather_parameters();
      {
        const auto inner = model.gather_parameters();
        expect_same(copies(net->parameters()), expected);
      }
      net->forward(batch_of(group)).sum().backward();
      expect_same(copies(net->parameters()), expected);
      EXPECT_THAT(error_of([&] { model.step(); }), HasSubstr("while gather_parameters() keeps"));
    }
    EXPECT_EQ(net->first->fc->weight.numel(), 0);
    const auto again = model.gather_parameters();
    expect_same(copies(net->parameters()), expected);
  });
}

// One weight in two units, under two names.
struct TiedUnitsImpl : torch::nn::Module {
  struct PartImpl : torch::nn::Module {
    explicit PartImpl(torch::Tensor shared) : weight(register_parameter("weight", std::move(shared))) {}
    torch::Tensor forward(torch::Tensor x) { return torch::tanh(torch::matmul(x, weight)); }
    torch::Tensor weight;
  };
  TiedUnitsImpl()
      : first(register_module("first", Sharded<PartImpl>(formula({8, 8}, 3)))),
        second(register_module("second", Sharded<PartImpl>(first->weight))) {}
  torch::Tensor forward(torch::Tensor x) { return second(first(x)); }
  Sharded<PartImpl> first, second;
};
TORCH_MODULE(TiedUnits);

TEST_P(ShardedUnitsTest, TiedParametersOfSeveralUnits) {
  run([](Communicator& group) {
    TiedUnits whole;
    DataParallel reference(whole, group);
    reference.forward(batch_of(group)).square().mean().backward();
    torch::optim::SGD plain({whole->first->weight}, torch::optim::SGDOptions(0.1));
    plain.step();
    TiedUnits tied;
    torch::optim::SGD optimizer({tied->first->weight}, torch::optim::SGDOptions(0.1));
    ShardedModel model(tied.ptr(), optimizer, group, kStage3);
    model.prepare_forward();
    tied->forward(batch_of(group)).square().mean().backward();
    model.step();
    const auto scope = model.gather_parameters();
    EXPECT_TRUE(same_bits(tied->second->weight, whole->second->weight));
  });
}

TEST_P(ShardedUnitsTest, TwoForwardsThenTwoBackwards) {
  run([](Communicator& group) {
    const auto losses = [&](LayerNet& net) {
      const at::Tensor a = net->forward(batch_of(group, 0)).square().mean();
      const at::Tensor b = net->forward(batch_of(group, 1)).square().mean();
      return std::pair(a, b);
    };
    LayerNet whole;
    DataParallel reference(whole, group);
    reference.prepare_forward();
    const auto [a, b] = losses(whole);
    {
      const auto scope = reference.no_sync();
      a.backward();
    }
    b.backward();

    LayerNet net;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    ShardedModel model(net.ptr(), optimizer, group, kStage3);
    model.prepare_forward();
    const auto [c, d] = losses(net);
    c.backward();
    d.backward();
    model.step();
    torch::optim::SGD plain(whole->parameters(), 0.1);
    plain.step();
    const auto scope = model.gather_parameters();
    const auto parameters = net->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(parameters[i], whole->parameters()[i], 1e-5, 1e-7)) << i;
    }
  });
}

TEST_P(ShardedUnitsTest, RanksMayUseDifferentParameters) {
  run([](Communicator& group) {
    LayerNet net;
    net->add_heads();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    ShardedOptions options = kStage3;
    options.find_unused_parameters = true;
    options.zero.bucket_cap_bytes = 64;
    ShardedModel model(net.ptr(), optimizer, group, options);
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      model.prepare_forward();
      net->forward_by_rank(batch_of(group, step), group.rank()).square().mean().backward();
      model.step();
    }
    LayerNet whole;
    whole->add_heads();
    DataParallel reference(whole, group, {.find_unused_parameters = true});
    torch::optim::SGD plain(whole->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      reference.zero_grad();
      reference.prepare_forward();
      whole->forward_by_rank(batch_of(group, step), group.rank()).square().mean().backward();
      plain.step();
    }
    const auto scope = model.gather_parameters();
    expect_same(copies(net->parameters()), copies(whole->parameters()));
  });
}

TEST_P(ShardedUnitsTest, GoesOnAfterABackwardThatFailed) {
  run([](Communicator& group) {
    LayerNet net;
    net->add_heads();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    ShardedModel model(net.ptr(), optimizer, group, kStage3);
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      model.prepare_forward();
      EXPECT_THAT(error_of([&] { net->forward(batch_of(group, step)).square().mean().backward(); }),
                  HasSubstr("parameters got no gradient in this step"));
    }
    model.zero_grad();
    model.prepare_forward();
    const at::Tensor input = batch_of(group);
    (net->forward_by_rank(input, 0) + net->forward_by_rank(input, 1)).square().mean().backward();
    model.step();
    EXPECT_EQ(net->first->fc->weight.numel(), 0);
  });
}

TEST_P(ShardedUnitsTest, LoadedParametersCountAfterAnEvaluation) {
  run([](Communicator& group) {
    LayerNet net;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    ShardedModel model(net.ptr(), optimizer, group, kStage3);
    const torch::NoGradGuard no_grad;
    model.prepare_forward();
    net->forward(batch_of(group));
    model.load_parameters(
        [](const std::vector<ShardedModel::Part>& parts) {
          for (const auto& part : parts) part.data.fill_(0.125);
        },
        {});
    model.prepare_forward();
    EXPECT_TRUE(net->out->weight.eq(0.125).all().item<bool>());
  });
}

TEST_P(ShardedUnitsTest, RanksMustAgreeOnTheOptions) {
  if (GetParam().size() == 1) return;  // nobody to disagree with
  EXPECT_THAT(error_of([&] {
                run([](Communicator& group) {
                  LayerNet net;
                  torch::optim::SGD optimizer(net->parameters(), 0.1);
                  ShardedModel model(net.ptr(), optimizer, group, {.zero = {.stage = 1 + group.rank() % 2}});
                });
              }),
              HasSubstr("option stage"));
}

INSTANTIATE_TEST_SUITE_P(Groups, ShardedUnitsTest,
                         testing::Values(GroupCase{"gloo", {0}}, GroupCase{"shm", {0, 0}},
                                         GroupCase{"gloo", {0, 0}}),
                         [](const auto& info) { return info.param.name(); });

// Rank 1 steps only when rank 0 has returned from its step(): who waited there for the parts
// of the other would never return.
TEST(UnitUpdatesTest, AStepDoesNotWaitForTheUpdatesOfUnits) {
  for (const int stage : {1, 2}) {
    std::promise<void> returned;
    run_group({"gloo", {0, 1}}, [&](Communicator& group) {
      Layer block;
      set_parameters(*block);
      torch::optim::SGD optimizer(block->parameters(), 0.1);
      ShardedModel model(block.ptr(), optimizer, group, {.zero = {.stage = stage, .overlap_gather = true}});
      model.prepare_forward();
      block->forward(formula({4, 8}, group.rank())).square().mean().backward();
      if (group.rank() == 1) {
        ASSERT_EQ(returned.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
      }
      model.step();
      if (group.rank() == 0) returned.set_value();
      // Now it does: all ranks compute with the same parameters.
      model.prepare_forward();
      const at::Tensor output = block->forward(formula({4, 8}, 7)).detach().clone();
      const at::Tensor of_first = output.clone();
      group.broadcast(of_first).wait();
      EXPECT_TRUE(same_bits(output, of_first));
    });
  }
}

TEST(UnitUpdatesTest, FinishStepMakesUpdatesReadable) {
  for (const int stage : {0, 1, 2}) {
    run_group({"gloo", {0, 1, 2}}, [&](Communicator& group) {
      Layer block;
      set_parameters(*block);
      torch::optim::SGD optimizer(block->parameters(), 0.1);
      ShardedModel model(block.ptr(), optimizer, group,
                         {.zero = {.stage = stage, .bucket_cap_bytes = 64, .overlap_gather = true}});
      for (int step = 0; step < 10; ++step) {
        model.zero_grad();
        model.prepare_forward();
        block->forward(formula({4, 8}, 10 * step + group.rank())).square().mean().backward();
        model.step();
        model.finish_step();
        for (const at::Tensor& parameter : block->parameters()) {
          const at::Tensor of_first = parameter.detach().clone();
          group.broadcast(of_first).wait();
          EXPECT_TRUE(same_bits(parameter.detach(), of_first)) << "stage " << stage << ", step " << step;
        }
      }
    });
  }
}

// Units whose weights are most of what there is.
struct CastNetImpl : torch::nn::Module {
  static constexpr int64_t kWidth = 256;
  static constexpr int kUnits = 8;
  using Unit = Sharded<torch::nn::LinearImpl>;

  CastNetImpl() {
    for (int i = 0; i < kUnits; ++i) {
      units.push_back(register_module("unit" + std::to_string(i), Unit(kWidth, kWidth)));
    }
    set_parameters(*this);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Unit& unit : units) x = torch::tanh(unit(x));
    return x;
  }
  std::vector<Unit> units;
};
TORCH_MODULE(CastNet);

struct CastRun {
  int64_t after_forward = 0;  // bytes of tensors that were made in a forward and are still there
  int64_t planned = 0;
  std::vector<at::Tensor> weights;
};

ShardedOptions under_autocast(int stage) {
  return {
      .zero = {.stage = stage, .bucket_cap_bytes = 1000, .persistence_threshold = CastNetImpl::kWidth + 1},
      .autocast_dtype = at::kBFloat16};
}

CastRun train_under_autocast(int stage, bool recomputes) {
  CastNet net;
  if (recomputes) set_activation_checkpointing(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  CastRun result;
  result.planned = plan_zero(*net, optimizer, 1, under_autocast(stage)).memory.casts;
  ShardedModel model(net.ptr(), optimizer, Communicator(), under_autocast(stage));
  const at::Tensor x = formula({2, CastNetImpl::kWidth}, 0).requires_grad_();
  for (int step = 0; step < 3; ++step) {
    model.zero_grad();
    model.prepare_forward();
    at::Tensor loss;
    {
      const train::CountedMemory memory;
      {
        const Autocast autocast(at::kBFloat16, at::kCPU);
        loss = net->forward(x).to(at::kFloat).square().mean();
      }
      result.after_forward = memory.live_bytes();
    }
    loss.backward();
    model.step();
  }
  const auto scope = model.gather_parameters();
  result.weights = copies(net->parameters());
  return result;
}

// Every rank of a model that is divided would hold all of it, in 16 bit.
TEST(ShardedUnits, CopiesThatAutocastKeepsAreCountedAndSaidAtStageThree) {
  constexpr int64_t kCopy = 2 * CastNetImpl::kWidth * CastNetImpl::kWidth;
  constexpr int64_t kBias = 2 * CastNetImpl::kWidth;
  const CastRun whole = train_under_autocast(0, /*recomputes=*/false);
  EXPECT_GE(whole.after_forward, CastNetImpl::kUnits * kCopy);
  EXPECT_EQ(whole.planned, CastNetImpl::kUnits * (kCopy + kBias));
  testing::internal::CaptureStderr();
  const CastRun divided = train_under_autocast(3, /*recomputes=*/false);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::AllOf(HasSubstr("with precision bf16 every rank keeps a 16-bit copy"),
                             HasSubstr("set dtype to bfloat16 in place of precision")));
  EXPECT_GE(divided.after_forward, CastNetImpl::kUnits * kCopy);
  EXPECT_EQ(divided.planned, whole.planned);
  expect_same(divided.weights, whole.weights);
  const CastRun again = train_under_autocast(3, /*recomputes=*/true);
  EXPECT_LT(again.after_forward, kCopy);
  EXPECT_EQ(again.planned, kCopy + kBias);
  expect_same(again.weights, whole.weights);
}

TEST(ShardedUnits, CopiesThatAutocastKeepsMustFit) {
  CastNet net;
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  ShardedOptions options = under_autocast(2);
  options.memory_limit_bytes =
      plan_zero(*net, optimizer, 1, {.zero = {.stage = 2, .bucket_cap_bytes = 1000}}).memory.total() +
      100'000;
  EXPECT_THAT(error_of([&] { ShardedModel(net.ptr(), optimizer, Communicator(), options); }),
              HasSubstr("the model does not fit: at stage 2"));
  options.autocast_dtype.reset();
  const ShardedModel fits(net.ptr(), optimizer, Communicator(), options);
}

}  // namespace
}  // namespace lockstep
