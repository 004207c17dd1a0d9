// Random graphs, with unused, shared and frozen parameters: our reducer against
// c10d::Reducer, which PyTorch's DDP runs on, bit for bit with two ranks.

#include <gtest/gtest.h>
#include <lockstep/c10d.h>
#include <lockstep/data_parallel.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <random>

#include "support/formula.h"
#include "support/group_case.h"

namespace lockstep {
namespace {

using test::formula;
using test::same_bits;

constexpr int kGraphs = 60;
constexpr int kGraphSteps = 3;

// What a graph is: drawn from the seed alone, so that both ranks and both reducers
// see the same.
struct Plan {
  int64_t width = 0;
  std::vector<bool> frozen;
  bool find_unused = false;
  int64_t bucket_bytes = 0;
  // [step][rank]: parameters in the order of use; one may come twice or never.
  std::vector<std::vector<std::vector<size_t>>> uses;
  std::vector<std::vector<bool>> relu;  // [step]: after each use
};

std::vector<size_t> draw_uses(std::mt19937& random, size_t num_parameters, bool all) {
  std::vector<size_t> uses;
  if (all) {
    for (size_t i = 0; i < num_parameters; ++i) uses.push_back(i);
  }
  const size_t more = random() % 4 + 1;
  for (size_t i = 0; i < more; ++i) uses.push_back(random() % num_parameters);
  std::shuffle(uses.begin(), uses.end(), random);
  return uses;
}

Plan draw_plan(unsigned seed) {
  std::mt19937 random(seed);
  Plan plan;
  plan.width = 2 + random() % 6;
  plan.find_unused = random() % 2 == 0;
  plan.bucket_bytes = random() % 3 == 0 ? 1 << 20 : 1 + random() % 300;
  const size_t num_parameters = 2 + random() % 6;
  for (size_t i = 0; i < num_parameters; ++i) plan.frozen.push_back(i > 0 && random() % 4 == 0);
  for (int step = 0; step < kGraphSteps; ++step) {
    auto& ranks = plan.uses.emplace_back();
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(draw_uses(random, num_parameters, !plan.find_unused));
      ranks.back().push_back(0);  // never frozen: there is always something to train
    }
    auto& relu = plan.relu.emplace_back();
    for (int i = 0; i < 16; ++i) relu.push_back(random() % 3 == 0);
  }
  return plan;
}

struct RandomNet : torch::nn::Module {
  explicit RandomNet(const Plan& plan) {
    for (size_t i = 0; i < plan.frozen.size(); ++i) {
      register_parameter("p" + std::to_string(i), formula({plan.width, plan.width}, static_cast<int64_t>(i)),
                         !plan.frozen[i]);
    }
  }

  at::Tensor loss(const Plan& plan, int step, int rank) const {
    const auto all = parameters();
    at::Tensor x = formula({3, plan.width}, 200 + 2 * step + rank);
    size_t depth = 0;
    for (const size_t use : plan.uses[step][rank]) {
      x = torch::mm(x, all[use]) + x;
      x = plan.relu[step][depth++ % 16] ? torch::relu(x) : torch::tanh(x);
    }
    return x.square().sum();
  }

  std::vector<at::Tensor> trained() const {
    std::vector<at::Tensor> result;
    for (const auto& parameter : parameters()) {
      if (parameter.requires_grad()) result.push_back(parameter);
    }
    return result;
  }
};

std::shared_ptr<c10d::Reducer> make_oracle(const Plan& plan, const std::vector<at::Tensor>& parameters,
                                           const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      parameters, {static_cast<size_t>(plan.bucket_bytes)}, std::vector<bool>(parameters.size(), false));
  std::reverse(buckets.begin(), buckets.end());
  return std::make_shared<c10d::Reducer>(
      parameters, buckets, group, std::vector<bool>(parameters.size(), false), plan.bucket_bytes,
      plan.find_unused,
      /*gradient_as_bucket_view=*/false, std::unordered_map<size_t, std::string>{}, plan.bucket_bytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<int64_t>{});
}

// The gradients of each step.
using Gradients = std::vector<std::vector<at::Tensor>>;

void keep(Gradients& all, const std::vector<at::Tensor>& parameters) {
  auto& step = all.emplace_back();
  for (const auto& parameter : parameters) {
    step.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  }
}

Gradients run_oracle(const Plan& plan, const Communicator& communicator,
                     const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  RandomNet net(plan);
  const auto parameters = net.trained();
  const auto reducer = make_oracle(plan, parameters, group);
  const auto logger = std::make_shared<c10d::Logger>(reducer);  // it does not run without one
  reducer->set_logger(logger);
  Gradients gradients;
  for (int step = 0; step < kGraphSteps; ++step) {
    net.zero_grad();
    reducer->prepare_for_forward();
    reducer->rebuild_buckets();
    const auto loss = net.loss(plan, step, communicator.rank());
    reducer->prepare_for_backward(plan.find_unused ? std::vector<at::Tensor>{loss}
                                                   : std::vector<at::Tensor>{});
    loss.backward();
    keep(gradients, parameters);
  }
  return gradients;
}

Gradients run_ours(const Plan& plan, const Communicator& communicator, bool optimizer_zeroes) {
  auto net = std::make_shared<RandomNet>(plan);
  GradientSync sync(net, communicator,
                    {.find_unused_parameters = plan.find_unused, .bucket_cap_bytes = plan.bucket_bytes});
  Gradients gradients;
  for (int step = 0; step < kGraphSteps; ++step) {
    if (optimizer_zeroes) {
      net->zero_grad();
    } else {
      sync.zero_grad();
    }
    sync.prepare_forward();
    net->loss(plan, step, communicator.rank()).backward();
    keep(gradients, net->trained());
  }
  return gradients;
}

TEST(C10dOracle, RandomGraphsGiveTheSameBits) {
  std::atomic<int> undefined = 0, compared = 0;
  test::run_group({"gloo", {0, 0}}, [&](Communicator& communicator) {
    auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(),
                                                         communicator.rank(), communicator.size());
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend_of(communicator));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    for (unsigned seed = 0; seed < kGraphs; ++seed) {
      const Plan plan = draw_plan(seed);
      const Gradients expected = run_oracle(plan, communicator, group);
      const Gradients ours = run_ours(plan, communicator, seed % 2 == 0);
      for (int step = 0; step < kGraphSteps; ++step) {
        for (size_t i = 0; i < expected[step].size(); ++i) {
          EXPECT_TRUE(same_bits(ours[step][i], expected[step][i]))
              << "graph " << seed << " step " << step << " parameter " << i << "\nours " << ours[step][i]
              << "\nc10d " << expected[step][i];
          ++compared;
          if (!expected[step][i].defined()) ++undefined;
        }
      }
    }
  });
  // The drawing reaches what it is meant to reach.
  EXPECT_GT(compared, 500);
  EXPECT_GT(undefined, 20);
}

}  // namespace
}  // namespace lockstep
