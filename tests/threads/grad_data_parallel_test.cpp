// DataParallel over real groups, with ranks as threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include "support/formula.h"
#include "support/group_case.h"

namespace lockstep {
namespace {

using test::batch_of;
using test::formula;
using test::GroupCase;
using test::run_group;
using test::same_bits;
using test::set_parameters;
using testing::ElementsAre;
using testing::HasSubstr;

class DataParallelTest : public testing::TestWithParam<GroupCase> {
 protected:
  void run(const std::function<void(Communicator&)>& body) { run_group(GetParam(), body); }
};

torch::nn::Sequential make_mlp(int64_t salt = 0) {
  torch::nn::Sequential net(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 5),
                            torch::nn::Tanh(), torch::nn::Linear(5, 2));
  set_parameters(*net, salt);
  return net;
}

// This rank's own gradients, without any communication.
std::vector<at::Tensor> local_gradients(const at::Tensor& loss, const std::vector<at::Tensor>& parameters) {
  return torch::autograd::grad({loss}, parameters);
}

// The mean over the ranks as PyTorch computes it: multiply by 1 / size, then add.
std::vector<at::Tensor> mean_gradients(torch::nn::Sequential net, int size, int step = 0) {
  std::vector<at::Tensor> mean;
  for (int rank = 0; rank < size; ++rank) {
    auto gradients = local_gradients(net->forward(batch_of(rank, step)).square().mean(), net->parameters());
    for (size_t i = 0; i < gradients.size(); ++i) {
      const auto part = gradients[i] * (1.0 / size);
      if (rank == 0) {
        mean.push_back(part);
      } else {
        mean[i] = mean[i] + part;
      }
    }
  }
  return mean;
}

void expect_gradients(torch::nn::Sequential net, const std::vector<at::Tensor>& expected, int size) {
  const auto parameters = net->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (size <= 2) {
      EXPECT_TRUE(same_bits(parameters[i].grad(), expected[i])) << "parameter " << i;
    } else {  // the order of additions is the backend's
      EXPECT_TRUE(torch::allclose(parameters[i].grad(), expected[i], 1e-6, 1e-7)) << "parameter " << i;
    }
  }
}

TEST_P(DataParallelTest, ConstructionCopiesParametersAndBuffersOfRank0) {
  run([](Communicator& group) {
    torch::nn::Sequential net(torch::nn::Conv2d(1, 2, 3), torch::nn::BatchNorm2d(2));
    set_parameters(*net, 50 * group.rank());
    net->named_buffers()["1.num_batches_tracked"].fill_(group.rank() + 7);
    net->named_buffers()["1.running_mean"].fill_(group.rank() + 0.5);
    DataParallel model(net, group);
    torch::nn::Sequential expected(torch::nn::Conv2d(1, 2, 3), torch::nn::BatchNorm2d(2));
    set_parameters(*expected, 0);
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(same_bits(net->parameters()[i], expected->parameters()[i]));
    }
    EXPECT_EQ(net->named_buffers()["1.num_batches_tracked"].item<int64_t>(), 7);
    EXPECT_EQ(net->named_buffers()["1.running_mean"][0].item<float>(), 0.5f);
  });
}

TEST_P(DataParallelTest, GradientIsTheMeanOverTheRanks) {
  run([](Communicator& group) {
    auto net = make_mlp();
    DataParallel model(net, group);
    for (int step = 0; step < 3; ++step) {
      const auto expected = mean_gradients(net, group.size(), step);
      model.zero_grad();
      model.forward(batch_of(group.rank(), step)).square().mean().backward();
      expect_gradients(net, expected, group.size());
    }
  });
}

TEST_P(DataParallelTest, GradientsAreViewsOfTheBucketsAndTheOnlyCopy) {
  run([](Communicator& group) {
    auto net = make_mlp();
    DataParallel model(net, group);
    model.forward(batch_of(group.rank())).square().mean().backward();
    const std::vector<at::Tensor> flat = model.flat_gradients();
    // Who is alone needs no bucket.
    ASSERT_EQ(flat.size(), group.size() == 1 ? 6u : 1u);
    int64_t parameter_bytes = 0;
    for (const auto& parameter : net->parameters()) {
      EXPECT_TRUE(std::any_of(flat.begin(), flat.end(), [&](const at::Tensor& gradient) {
        return parameter.grad().is_alias_of(gradient);
      }));
      parameter_bytes += static_cast<int64_t>(parameter.nbytes());
    }
    EXPECT_GE(model.gradient_bytes(), parameter_bytes);
    EXPECT_LT(model.gradient_bytes(), parameter_bytes + 64 * static_cast<int64_t>(net->parameters().size()));
    EXPECT_THAT(model.buckets()[0].parameters,
                ElementsAre("4.bias", "4.weight", "2.bias", "2.weight", "0.bias", "0.weight"));
  });
}

TEST_P(DataParallelTest, EveryBucketSizeGivesTheSameBits) {
  run([](Communicator& group) {
    for (const int64_t cap : {1, 40, 100, 1 << 20}) {
      auto net = make_mlp();
      const auto expected = mean_gradients(net, group.size());
      DataParallel model(net, group, {.bucket_cap_bytes = cap});
      model.forward(batch_of(group.rank())).square().mean().backward();
      expect_gradients(net, expected, group.size());
      if (cap == 1) EXPECT_EQ(model.buckets().size(), 6u);
    }
  });
}

TEST_P(DataParallelTest, AnOptimizersOwnZeroGradKeepsWorking) {
  run([](Communicator& group) {
    for (const bool set_to_none : {true, false}) {
      auto net = make_mlp();
      DataParallel model(net, group);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        const auto expected = mean_gradients(net, group.size(), step);
        optimizer.zero_grad(set_to_none);
        model.forward(batch_of(group.rank(), step)).square().mean().backward();
        expect_gradients(net, expected, group.size());
        EXPECT_TRUE(net->parameters()[0].grad().is_alias_of(model.flat_gradients()[0]));
        optimizer.step();
      }
    }
  });
}

TEST_P(DataParallelTest, WithoutZeroGradMeansAccumulate) {
  run([](Communicator& group) {
    auto net = make_mlp();
    auto expected = mean_gradients(net, group.size(), 0);
    const auto second = mean_gradients(net, group.size(), 1);
    DataParallel model(net, group);
    model.forward(batch_of(group.rank(), 0)).square().mean().backward();
    model.forward(batch_of(group.rank(), 1)).square().mean().backward();
    const auto parameters = net->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(parameters[i].grad(), expected[i] + second[i], 1e-6, 1e-7));
    }
  });
}

TEST_P(DataParallelTest, NoSyncKeepsGradientsLocalUntilTheNextBackward) {
  run([](Communicator& group) {
    auto net = make_mlp();
    const auto parameters = net->parameters();
    const auto local = local_gradients(net->forward(batch_of(group.rank(), 0)).square().mean(), parameters);
    const auto first = mean_gradients(net, group.size(), 0), second = mean_gradients(net, group.size(), 1);
    DataParallel model(net, group);
    {
      const auto scope = model.no_sync();
      const auto inner = model.no_sync();
      model.forward(batch_of(group.rank(), 0)).square().mean().backward();
      for (size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(same_bits(parameters[i].grad(), local[i]));
    }
    model.forward(batch_of(group.rank(), 1)).square().mean().backward();
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(parameters[i].grad(), first[i] + second[i], 1e-6, 1e-7));
    }
  });
}

TEST_P(DataParallelTest, BuffersOfRank0GoToAllRanksBeforeAForward) {
  run([](Communicator& group) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(3));
    DataParallel model(net, group);
    for (int step = 0; step < 2; ++step) {
      model.forward(batch_of(group.rank(), step)).square().sum().backward();
      model.zero_grad();
    }
    model.sync_buffers();
    auto mine = net->named_buffers()["0.running_var"].clone();
    auto rank0 = mine.clone();
    group.broadcast(rank0).wait();
    EXPECT_TRUE(same_bits(mine, rank0));

    DataParallel loose(net, group, {.broadcast_buffers = false});
    for (int step = 0; step < 2; ++step)
      loose.forward(batch_of(group.rank(), step)).square().sum().backward();
    mine = net->named_buffers()["0.running_var"].clone();
    rank0 = mine.clone();
    group.broadcast(rank0).wait();
    EXPECT_EQ(same_bits(mine, rank0), group.rank() == 0);
  });
}

TEST_P(DataParallelTest, ClipsByTheTotalNormOfAllBuckets) {
  run([](Communicator& group) {
    for (const double norm_type : {2.0, std::numeric_limits<double>::infinity()}) {
      auto net = make_mlp();
      DataParallel model(net, group, {.bucket_cap_bytes = 64});
      model.forward(batch_of(group.rank())).square().mean().backward();
      std::vector<at::Tensor> expected;
      auto reference = make_mlp();
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        reference->parameters()[i].mutable_grad() = net->parameters()[i].grad().clone();
      }
      const double norm = torch::nn::utils::clip_grad_norm_(reference->parameters(), 0.01, norm_type);
      EXPECT_NEAR(model.clip_grad_norm(0.01, norm_type).item<double>(), norm, 1e-6);
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        EXPECT_TRUE(
            torch::allclose(net->parameters()[i].grad(), reference->parameters()[i].grad(), 1e-5, 1e-8));
      }
      EXPECT_LE(model.clip_grad_norm(1.0).item<double>(), 1.0);  // now small: nothing to clip
    }
  });
}

TEST_P(DataParallelTest, AHookReplacesTheMean) {
  run([](Communicator& group) {
    auto net = make_mlp();
    const auto mean = mean_gradients(net, group.size());
    std::vector<std::string> names;
    std::vector<size_t> order, finished;
    DataParallel model(net, group,
                       {.hook =
                            [&](const GradientBucket& bucket, const Communicator& communicator) {
                              EXPECT_EQ(bucket.count, 6u);
                              order.push_back(bucket.index);
                              names.insert(names.end(), bucket.parameters.begin(), bucket.parameters.end());
                              return PendingReduction{
                                  communicator.all_reduce(bucket.gradients),
                                  [&, index = bucket.index] { finished.push_back(index); }};
                            },
                        .bucket_cap_bytes = 1});
    model.forward(batch_of(group.rank())).square().mean().backward();
    EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5));
    EXPECT_THAT(finished, ElementsAre(0, 1, 2, 3, 4, 5));
    EXPECT_THAT(names, ElementsAre("4.bias", "4.weight", "2.bias", "2.weight", "0.bias", "0.weight"));
    for (size_t i = 0; i < mean.size(); ++i) {
      EXPECT_TRUE(torch::allclose(net->parameters()[i].grad(), mean[i] * group.size(), 1e-6, 1e-7));
    }
  });
}

TEST_P(DataParallelTest, CompressionRoundsToTheSmallType) {
  run([](Communicator& group) {
    for (const auto& [compression, dtype] : {std::pair(GradientCompression::kFloat16, torch::kHalf),
                                             std::pair(GradientCompression::kBFloat16, torch::kBFloat16)}) {
      auto net = make_mlp();
      std::vector<std::vector<at::Tensor>> parts;
      for (int rank = 0; rank < group.size(); ++rank) {
        parts.push_back(local_gradients(net->forward(batch_of(rank)).square().mean(), net->parameters()));
      }
      DataParallel model(net, group, {.compression = compression});
      model.forward(batch_of(group.rank())).square().mean().backward();
      for (size_t i = 0; i < parts[0].size(); ++i) {
        auto expected = parts[0][i].to(dtype) / group.size();
        for (int rank = 1; rank < group.size(); ++rank)
          expected = expected + parts[rank][i].to(dtype) / group.size();
        const auto& gradient = net->parameters()[i].grad();
        EXPECT_EQ(gradient.scalar_type(), torch::kFloat);
        if (group.size() <= 2) {
          EXPECT_TRUE(same_bits(gradient, expected.to(torch::kFloat)));
        } else {
          EXPECT_TRUE(torch::allclose(gradient, expected.to(torch::kFloat), 2e-2, 1e-3));
        }
      }
    }
  });
}

TEST_P(DataParallelTest, NothingIsLeftBehindByTheDestructor) {
  run([](Communicator& group) {
    auto net = make_mlp();
    { DataParallel model(net, group); }
    net->zero_grad();
    const auto local =
        local_gradients(net->forward(batch_of(group.rank())).square().mean(), net->parameters());
    net->forward(batch_of(group.rank())).square().mean().backward();
    for (size_t i = 0; i < local.size(); ++i) EXPECT_TRUE(same_bits(net->parameters()[i].grad(), local[i]));
  });
}

// Notes when backward passes through it.
struct Milestone : torch::autograd::Function<Milestone> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            int64_t* passed) {
    context->saved_data["passed"] = reinterpret_cast<int64_t>(passed);
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    ++*reinterpret_cast<int64_t*>(context->saved_data["passed"].toInt());
    return {grads[0], at::Tensor()};
  }
};

TEST_P(DataParallelTest, FullBucketsStartWhileBackwardRunsFromTheFirstStep) {
  run([](Communicator& group) {
    torch::nn::Linear first(3, 4), second(4, 2);
    torch::nn::Sequential net(first, second);
    int64_t passed = 0;
    std::vector<int64_t> passed_at_start;
    GradientSync sync(net.ptr(), group,
                      {.hook =
                           [&](const GradientBucket& bucket, const Communicator& communicator) {
                             passed_at_start.push_back(passed);
                             return PendingReduction{communicator.all_reduce(bucket.gradients), {}};
                           },
                       .bucket_cap_bytes = 1});
    sync.prepare_forward();
    second->forward(Milestone::apply(first->forward(batch_of(group.rank())), &passed)).sum().backward();
    EXPECT_THAT(passed_at_start, ElementsAre(0, 0, 1, 1));
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, DataParallelTest,
                         testing::Values(GroupCase{"gloo", {0}}, GroupCase{"gloo", {0, 0}},
                                         GroupCase{"shm", {0, 0}}, GroupCase{"shm", {0, 0, 0}},
                                         GroupCase{"gloo", {0, 0, 0}}),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace lockstep
