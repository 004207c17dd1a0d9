// Parameters that are not the ordinary case: unused, frozen, tied, used twice, of
// any layout, size and dtype; and models that differ between the ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include "support/formula.h"
#include "support/group_case.h"

namespace lockstep {
namespace {

using test::formula;
using test::run_group;
using test::same_bits;
using test::set_parameters;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const test::GroupCase kTwoRanks{"shm", {0, 0}};

// A module of free parameters; what a step does with them is the test's.
struct Bag : torch::nn::Module {
  at::Tensor add(const std::string& name, const at::Tensor& value, bool requires_grad = true) {
    return register_parameter(name, value.clone(at::MemoryFormat::Preserve), requires_grad);
  }
};

std::shared_ptr<Bag> make_bag(std::initializer_list<const char*> names) {
  auto bag = std::make_shared<Bag>();
  int64_t salt = 0;
  for (const char* name : names) bag->add(name, formula({3, 2}, salt++));
  return bag;
}

template <typename Function>
std::string config_error_of(Function&& function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

// A rank's gradient of sum(p * factor) is factor everywhere: rank + 1, so that the
// mean over two ranks is 1.5.
double factor_of(const Communicator& group) { return group.rank() + 1.0; }

void expect_all(const at::Tensor& gradient, double value) {
  ASSERT_TRUE(gradient.defined());
  EXPECT_TRUE(torch::equal(gradient, torch::full_like(gradient, value))) << gradient;
}

TEST(UnusedParameters, AreNamedWhenNotAllowed) {
  run_group(kTwoRanks, [](Communicator& group) {
    auto bag = make_bag({"a", "b", "c"});
    GradientSync sync(bag, group);
    const auto p = bag->parameters();
    EXPECT_THAT(config_error_of([&] { p[1].sum().backward(); }),
                AllOf(HasSubstr("[grad] parameters got no gradient in this step"),
                      HasSubstr("find_unused_parameters"), HasSubstr(": a, c")));
    // The error leaves the reducer usable.
    sync.zero_grad();
    ((p[0] + p[1] + p[2]).sum() * factor_of(group)).backward();
    for (const auto& parameter : p) expect_all(parameter.grad(), 1.5);
  });
}

TEST(UnusedParameters, AfterAnErrorStartedBucketsAreWaitedFor) {
  run_group(kTwoRanks, [](Communicator& group) {
    auto bag = make_bag({"a", "b", "c"});
    GradientSync sync(bag, group, {.bucket_cap_bytes = 1});  // c's bucket is in flight when a is missed
    const auto p = bag->parameters();
    EXPECT_THAT(config_error_of([&] { (p[1] + p[2]).sum().backward(); }), HasSubstr("step; set"));
    sync.zero_grad();
    ((p[0] + p[1] + p[2]).sum() * factor_of(group)).backward();
    for (const auto& parameter : p) expect_all(parameter.grad(), 1.5);
  });
}

TEST(UnusedParameters, CountAsZeroWhenAllowed) {
  run_group(kTwoRanks, [](Communicator& group) {
    for (const int64_t cap : {1, 1 << 20}) {
      for (const bool optimizer_zeroes : {false, true}) {
        auto bag = make_bag({"everywhere", "rank1", "nowhere"});
        GradientSync sync(bag, group, {.find_unused_parameters = true, .bucket_cap_bytes = cap});
        const auto p = bag->parameters();
        for (int step = 0; step < 3; ++step) {
          if (optimizer_zeroes) {
            bag->zero_grad();
          } else {
            sync.zero_grad();
          }
          auto loss = p[0].sum();
          if (group.rank() == 1) loss = loss + p[1].sum();
          (loss * factor_of(group)).backward();
          expect_all(p[0].grad(), 1.5);
          expect_all(p[1].grad(), 1.0);
          EXPECT_FALSE(p[2].grad().defined());
        }
        // Used again: its gradient is back in the bucket.
        sync.zero_grad();
        ((p[0] + p[1] + p[2]).sum() * factor_of(group)).backward();
        for (const auto& parameter : p) expect_all(parameter.grad(), 1.5);
        EXPECT_TRUE(p[2].grad().is_alias_of(sync.flat_gradients().front()));
      }
    }
  });
}

TEST(UnusedParameters, UsedOnlyUnderNoSyncStillContribute) {
  run_group(kTwoRanks, [](Communicator& group) {
    for (const bool find_unused : {false, true}) {
      auto bag = make_bag({"a", "b"});
      GradientSync sync(bag, group, {.find_unused_parameters = find_unused});
      const auto p = bag->parameters();
      {
        const auto scope = sync.no_sync();
        (p[0].sum() * factor_of(group)).backward();
      }
      (p[1].sum() * factor_of(group)).backward();
      expect_all(p[0].grad(), 1.5);
      expect_all(p[1].grad(), 1.5);
    }
  });
}

TEST(UnusedParameters, KeepAnEarlierGradientThatWasNotZeroed) {
  run_group(kTwoRanks, [](Communicator& group) {
    auto bag = make_bag({"a", "b"});
    GradientSync sync(bag, group, {.find_unused_parameters = true});
    const auto p = bag->parameters();
    ((p[0] + p[1]).sum() * factor_of(group)).backward();
    (p[0].sum() * factor_of(group)).backward();
    expect_all(p[0].grad(), 3.0);
    expect_all(p[1].grad(), 1.5);
  });
}

TEST(StaticGraph, LearnsUnusedParametersOnce) {
  run_group(kTwoRanks, [](Communicator& group) {
    auto bag = make_bag({"everywhere", "rank1", "nowhere"});
    GradientSync sync(bag, group, {.static_graph = true, .bucket_cap_bytes = 1});
    const auto p = bag->parameters();
    for (int step = 0; step < 3; ++step) {
      sync.zero_grad();
      auto loss = p[0].sum();
      if (group.rank() == 1) loss = loss + p[1].sum();
      (loss * factor_of(group)).backward();
      expect_all(p[0].grad(), 1.5);
      expect_all(p[1].grad(), 1.0);
      EXPECT_FALSE(p[2].grad().defined());
    }
  });
}

TEST(StaticGraph, AChangeIsAnError) {
  for (const bool more : {false, true}) {
    Communicator alone;
    auto bag = make_bag({"a", "b", "c"});
    GradientSync sync(bag, alone, {.static_graph = true});
    const auto p = bag->parameters();
    (p[0] + p[1]).sum().backward();
    const auto change = [&] { (more ? p[0] + p[1] + p[2] : p[0]).sum().backward(); };
    EXPECT_THAT(config_error_of(change), AllOf(HasSubstr("static_graph"), HasSubstr(more ? ": c" : ": b")));
  }
}

TEST(FrozenParameters, TakeNoPart) {
  run_group(kTwoRanks, [](Communicator& group) {
    auto bag = make_bag({"a"});
    bag->add("frozen", formula({3, 2}, 40 + group.rank()), /*requires_grad=*/false);
    GradientSync sync(bag, group);
    const auto p = bag->parameters();
    EXPECT_TRUE(same_bits(p[1], formula({3, 2}, 40)));  // but rank 0's value
    sync.prepare_forward();
    ((p[0] * p[1]).sum() * 0 + p[0].sum() * factor_of(group)).backward();
    expect_all(p[0].grad(), 1.5);
    EXPECT_FALSE(p[1].grad().defined());
    EXPECT_EQ(sync.buckets().size(), 1u);
  });
}

TEST(FrozenParameters, AChangeAfterConstructionIsNoticed) {
  Communicator alone;
  auto bag = make_bag({"a", "b"});
  bag->add("c", formula({2}, 1), /*requires_grad=*/false);
  GradientSync sync(bag, alone);
  auto p = bag->parameters();
  p[1].requires_grad_(false);
  EXPECT_THAT(config_error_of([&] { sync.prepare_forward(); }),
              AllOf(HasSubstr("was frozen"), HasSubstr(": b")));
  p[1].requires_grad_(true);
  sync.prepare_forward();
  p[2].requires_grad_(true);
  EXPECT_THAT(config_error_of([&] { sync.prepare_forward(); }),
              AllOf(HasSubstr("was unfrozen"), HasSubstr(": c")));
  p[2].requires_grad_(false);
  bag->to(torch::kDouble);
  EXPECT_THAT(config_error_of([&] { sync.prepare_forward(); }), AllOf(HasSubstr("dtype"), HasSubstr(": a")));
}

TEST(FrozenParameters, AModelWithNothingToTrainIsFine) {
  run_group(kTwoRanks, [](Communicator& group) {
    auto bag = std::make_shared<Bag>();
    bag->add("frozen", formula({4}, group.rank()), /*requires_grad=*/false);
    GradientSync sync(bag, group, {.find_unused_parameters = true});
    sync.prepare_forward();
    sync.zero_grad();
    EXPECT_EQ(sync.clip_grad_norm(1.0).item<double>(), 0.0);
    EXPECT_EQ(sync.gradient_bytes(), 0);
  });
}

TEST(SharedParameters, TiedWeightsAreReducedOnce) {
  run_group(kTwoRanks, [](Communicator& group) {
    auto bag = std::make_shared<Bag>();
    const auto encoder = bag->add("encoder", formula({3, 3}, 0));
    bag->register_parameter("decoder", encoder);  // one tensor, two names
    ASSERT_EQ(bag->parameters().size(), 2u);
    GradientSync sync(bag, group);
    EXPECT_EQ(sync.buckets().at(0).parameters, std::vector<std::string>{"encoder"});
    ((encoder + encoder * 2).sum() * factor_of(group)).backward();
    expect_all(encoder.grad(), 4.5);
  });
}

TEST(SharedParameters, AModuleUsedTwiceGetsTheSumOfItsUses) {
  run_group(kTwoRanks, [](Communicator& group) {
    torch::nn::Linear layer(3, 3);
    set_parameters(*layer);
    std::vector<at::Tensor> mean;
    for (int rank = 0; rank < 2; ++rank) {
      const auto x = formula({4, 3}, rank);
      auto gradients = torch::autograd::grad({layer(layer(x)).square().sum()}, layer->parameters());
      for (size_t i = 0; i < 2; ++i) {
        if (rank == 0) {
          mean.push_back(gradients[i] * 0.5);
        } else {
          mean[i] = mean[i] + gradients[i] * 0.5;
        }
      }
    }
    DataParallel model(layer, group);
    layer(model.forward(formula({4, 3}, group.rank()))).square().sum().backward();
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(layer->parameters()[i].grad(), mean[i]));
  });
}

TEST(Layouts, GradientsFollowDenseStridesAndAreRowMajorElse) {
  run_group(kTwoRanks, [](Communicator& group) {
    auto bag = std::make_shared<Bag>();
    const auto last =
        bag->add("channels_last", formula({2, 3, 4, 5}, 0).contiguous(at::MemoryFormat::ChannelsLast));
    const auto turned = bag->add("transposed", formula({3, 7}, 1).t());
    const auto holed = bag->register_parameter("holed", formula({4, 6}, 2).slice(1, 0, 6, 2));
    const auto empty = bag->add("empty", torch::empty({0, 3}));
    const auto scalar = bag->add("scalar", torch::tensor(2.0f));
    GradientSync sync(bag, group);
    EXPECT_EQ(last.grad().strides(), last.strides());
    EXPECT_EQ(turned.grad().strides(), turned.strides());
    EXPECT_TRUE(holed.grad().is_contiguous());

    at::Tensor loss = torch::zeros({});
    int64_t salt = 10;
    std::vector<at::Tensor> expected;
    for (const auto& parameter : bag->parameters()) {
      const auto weight = formula(parameter.sizes(), ++salt);
      loss = loss + (parameter * weight).sum() * factor_of(group);
      expected.push_back(weight * 1.5);
    }
    loss.backward();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(bag->parameters()[i].grad(), expected[i])) << i;
    }
    EXPECT_EQ(empty.grad().numel(), 0);
    EXPECT_EQ(scalar.grad().dim(), 0);
  });
}

TEST(Layouts, AModelOfEmptyParametersOnly) {
  run_group(kTwoRanks, [](Communicator& group) {
    auto bag = std::make_shared<Bag>();
    bag->add("empty", torch::empty({0}));
    GradientSync sync(bag, group);
    bag->parameters()[0].sum().backward();
    EXPECT_TRUE(bag->parameters()[0].grad().defined());
  });
}

TEST(Layouts, DtypesHaveTheirOwnBuckets) {
  run_group(kTwoRanks, [](Communicator& group) {
    auto bag = std::make_shared<Bag>();
    const std::vector dtypes{torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kFloat};
    for (size_t i = 0; i < dtypes.size(); ++i)
      bag->add("p" + std::to_string(i), formula({5}, 1).to(dtypes[i]));
    GradientSync sync(bag, group);
    EXPECT_EQ(sync.buckets().size(), 4u);
    at::Tensor loss = torch::zeros({}, torch::kDouble);
    for (const auto& parameter : bag->parameters()) loss = loss + parameter.sum().to(torch::kDouble);
    (loss * factor_of(group)).backward();
    for (size_t i = 0; i < dtypes.size(); ++i) {
      EXPECT_EQ(bag->parameters()[i].grad().scalar_type(), dtypes[i]);
      expect_all(bag->parameters()[i].grad(), 1.5);
    }
    EXPECT_NEAR(sync.clip_grad_norm(1e-3).item<double>(), std::sqrt(25 * 2.25), 0.05);
  });
}

TEST(Layouts, ANegativeZeroGradientKeepsItsSign) {
  Communicator alone;
  auto bag = make_bag({"a"});
  GradientSync sync(bag, alone);
  (bag->parameters()[0] * -0.0).sum().backward();
  EXPECT_TRUE(torch::signbit(bag->parameters()[0].grad()).all().item<bool>());
}

TEST(SparseGradients, AreRefusedByName) {
  Communicator alone;
  torch::nn::Sequential net(torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)));
  DataParallel model(net, alone);
  for (const bool to_none : {false, true}) {
    if (to_none) net->zero_grad();
    EXPECT_THAT(config_error_of([&] {
                  model.forward(torch::tensor({1, 2})).sum().backward();
                }),
                AllOf(HasSubstr("sparse gradients are not supported"), HasSubstr(": 0.weight")));
  }
}

TEST(Backward, AnExceptionInItLeavesTheNextOneWhole) {
  struct Thrower : torch::autograd::Function<Thrower> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) {
      return input.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   const torch::autograd::variable_list&) {
      throw std::runtime_error("mine");
    }
  };
  run_group(kTwoRanks, [](Communicator& group) {
    auto bag = make_bag({"a", "b"});
    GradientSync sync(bag, group, {.bucket_cap_bytes = 1});
    const auto p = bag->parameters();
    EXPECT_THROW((Thrower::apply(p[0] * 2).sum() + p[1].sum()).backward(), std::runtime_error);
    sync.zero_grad();
    ((p[0] + p[1]).sum() * factor_of(group)).backward();
    expect_all(p[0].grad(), 1.5);
    expect_all(p[1].grad(), 1.5);
  });
}

TEST(Backward, MayRunInsideAnotherOne) {
  // Hands its gradient on, after a backward of its own over another parameter.
  struct Nested : torch::autograd::Function<Nested> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                              const at::Tensor& other, double factor) {
      context->save_for_backward({other});
      context->saved_data["factor"] = factor;
      return input.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   const torch::autograd::variable_list& grads) {
      const torch::AutoGradMode grad_mode(true);
      const auto other = context->get_saved_variables()[0];
      (other.sum() * context->saved_data["factor"].toDouble()).backward();
      return {grads[0], at::Tensor(), at::Tensor()};
    }
  };
  run_group(kTwoRanks, [](Communicator& group) {
    for (const int64_t cap : {1, 1 << 20}) {
      auto bag = make_bag({"a", "b", "c"});
      GradientSync sync(bag, group, {.find_unused_parameters = true, .bucket_cap_bytes = cap});
      const auto p = bag->parameters();
      for (int step = 0; step < 2; ++step) {
        sync.zero_grad();
        ((Nested::apply(p[0] * 1, p[1], factor_of(group)) + p[2]).sum() * factor_of(group)).backward();
        for (const auto& parameter : p) expect_all(parameter.grad(), 1.5);
      }
    }
  });
}

TEST(Options, ThatMakeNoSenseAreRefused) {
  Communicator alone;
  const auto bag = make_bag({"a"});
  EXPECT_THAT(config_error_of([&] { GradientSync(bag, alone, {.bucket_cap_bytes = 0}); }),
              HasSubstr("bucket_cap_bytes must be positive: 0"));
  EXPECT_THAT(config_error_of([&] { GradientSync(bag, alone, {.first_bucket_cap_bytes = -1}); }),
              HasSubstr("first_bucket_cap_bytes must be positive: -1"));
  const auto hook = [](const GradientBucket&, const Communicator&) { return PendingReduction{}; };
  EXPECT_THAT(config_error_of([&] {
                GradientSync(bag, alone, {.compression = GradientCompression::kFloat16, .hook = hook});
              }),
              HasSubstr("exclude each other"));
}

// Every rank gets the same error, which tells who differs and how.
void expect_disagreement(
    const std::function<std::shared_ptr<Bag>(int rank)>& make, const std::string& text,
    const std::function<DataParallelOptions(int rank)>& options = [](int) { return DataParallelOptions{}; }) {
  run_group({"gloo", {0, 0, 0}}, [&](Communicator& group) {
    EXPECT_THAT(config_error_of([&] { GradientSync(make(group.rank()), group, options(group.rank())); }),
                AllOf(HasSubstr("the ranks have different models"), HasSubstr(text)));
  });
}

TEST(DifferentModels, ShapeDtypeRequiresGradAndStrides) {
  const auto with = [](auto value) {
    return [value](int rank) {
      auto bag = make_bag({"same"});
      if (rank == 2) {
        bag->add("w", value.first, value.second);
      } else {
        bag->add("w", formula({2, 2}, 0));
      }
      return bag;
    };
  };
  expect_disagreement(with(std::pair(formula({2, 3}, 0), true)),
                      "parameter w is Float [2, 2] on rank 0 and Float [2, 3] on rank 2");
  expect_disagreement(with(std::pair(formula({2, 2}, 0).to(torch::kDouble), true)),
                      "parameter w is Float [2, 2] on rank 0 and Double [2, 2] on rank 2");
  expect_disagreement(
      with(std::pair(formula({2, 2}, 0), false)),
      "parameter w is Float [2, 2] on rank 0 and Float [2, 2] without requires_grad on rank 2");
  expect_disagreement(with(std::pair(formula({2, 2}, 0).t(), true)), "with strides [1, 2] on rank 2");
}

TEST(DifferentModels, MissingAdditionalAndReordered) {
  expect_disagreement(
      [](int rank) {
        return rank == 1 ? make_bag({"a"}) : make_bag({"a", "b"});
      },
      "parameter b (Float [3, 2]) is on rank 0 but not on rank 1");
  expect_disagreement(
      [](int rank) {
        return rank == 1 ? make_bag({"a", "b"}) : make_bag({"a"});
      },
      "parameter b (Float [3, 2]) is on rank 1 but not on rank 0");
  expect_disagreement(
      [](int rank) {
        return rank == 2 ? make_bag({"b", "a"}) : make_bag({"a", "b"});
      },
      "parameter a on rank 0 comes where parameter b is on rank 2");
}

TEST(DifferentModels, Options) {
  expect_disagreement([](int) { return make_bag({"a"}); },
                      "option find_unused_parameters is false on rank 0 and true on rank 1",
                      [](int rank) { return DataParallelOptions{.find_unused_parameters = rank == 1}; });
}

TEST(DifferentModels, LongListsAreCut) {
  expect_disagreement(
      [](int rank) {
        auto bag = std::make_shared<Bag>();
        for (int i = 0; i < 9; ++i) bag->add("p" + std::to_string(i), formula({rank == 1 ? 2 : 3}, 0));
        return bag;
      },
      "and 4 more on rank 1");
}

}  // namespace
}  // namespace lockstep
