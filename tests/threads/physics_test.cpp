// Residual losses, weights by gradients, points that are drawn again.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <map>

#include "support/rank_threads.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::Training;
using testing::HasSubstr;
using testing::ThrowsMessage;

torch::Tensor uniform_points(int64_t count, uint64_t seed) {
  return torch::rand({count, 1}, torch::make_generator<at::CPUGeneratorImpl>(seed), torch::kDouble);
}

// u' = 2 t and u(0) = 1: u = t^2 + 1.
std::map<std::string, Residual> equations() {
  return {{"equation", [](const torch::Tensor& t, const Model& u) { return derivative(u(t), t) - 2 * t; }},
          {"start", [](const torch::Tensor& t, const Model& u) { return u(t) - 1; }}};
}

class PhysicsTest : public testing::Test {
 protected:
  PhysicsTest() {
    training_.config = test::quiet_config(folder_.path() / "run");
    training_.make_optimizer = [](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::Adam>(parameters, 3e-2);
    };
    training_.loss = residual_loss(equations());
  }

  // Fits with 32 points in [0, 1] and 32 at 0, and returns what `read` finds on rank 0.
  static FitResult fit(Trainer& trainer, const std::shared_ptr<const Dataset>& inside) {
    const LoaderOptions options{.batch_size = 32 / trainer.world().size(), .shuffle = true};
    const Loader equation(inside, options);
    const Loader start(TensorDataset{torch::zeros({32, 1}, torch::kDouble)}, options);
    return trainer.fit(std::map<std::string, const Loader*>{{"equation", &equation}, {"start", &start}});
  }

  test::TemporaryFolder folder_;
  Training training_;
};

TEST_F(PhysicsTest, DerivativesAreExact) {
  const torch::Tensor points = torch::rand({5, 2}, torch::kDouble).requires_grad_();
  const torch::Tensor x = points.narrow(1, 0, 1);
  const torch::Tensor y = points.narrow(1, 1, 1);
  const torch::Tensor first = derivative(x * x * y, points);
  EXPECT_TRUE(torch::allclose(first, torch::cat({2 * x * y, x * x}, 1)));
  EXPECT_TRUE(torch::allclose(derivative(first.narrow(1, 0, 1), points).narrow(1, 0, 1), 2 * y));
  EXPECT_TRUE(
      derivative(torch::ones({5, 1}, torch::kDouble).requires_grad_(), points).eq(0).all().item<bool>());
}

TEST_F(PhysicsTest, SolvesAnEquationAlikeOnOneAndTwoRanks) {
  const auto run = [this](int ranks) {
    Training training = training_;
    training.ranks = ranks;
    training.config.max_iter = 600;
    training.config.log_folder = (folder_.path() / fmt::format("ranks-{}", ranks)).string();
    training.fit = [](Trainer& trainer, const Loader&) {
      const FitResult result =
          fit(trainer, std::make_shared<TensorDataset>(TensorDataset{uniform_points(32, 1)}));
      EXPECT_NEAR(result.metrics.at("train_equation") + result.metrics.at("train_start"), result.train_loss,
                  1e-9);
      const torch::NoGradGuard no_grad;
      const torch::Tensor t = torch::linspace(0, 1, 11, torch::kDouble).reshape({-1, 1});
      EXPECT_LT((trainer.model()(t) - t.square() - 1).abs().max().item<double>(), 0.15);
      return result;
    };
    return training.run();
  };
  test::expect_close_weights(run(1), run(2), 1e-6);
}

TEST_F(PhysicsTest, GradWeightsAreThoseOfTheFormulaForAnyNumberOfRanks) {
  const auto weights = [this](int ranks) {
    std::map<std::string, double> result;
    Training training = training_;
    training.ranks = ranks;
    training.config.max_iter = 3;
    training.config.log_folder = (folder_.path() / fmt::format("weights-{}", ranks)).string();
    training.fit = [&](Trainer& trainer, const Loader&) {
      const GradWeightedLoss loss(trainer.world(), residual_loss(equations()), "equation", {.alpha = 0.5});
      const torch::Tensor t = uniform_points(8, 3);
      const torch::Tensor zero = torch::zeros({8, 1}, torch::kDouble);
      // Each rank has its part of the points.
      const int64_t own = 8 / trainer.world().size();
      const auto part = [&](const torch::Tensor& all) {
        return Batch{.tensors = {all.narrow(0, trainer.world().rank() * own, own)}, .parts = {}};
      };
      const Batch batch{.tensors = {}, .parts = {{"equation", part(t)}, {"start", part(zero)}}};
      for (int i = 0; i < 3; ++i) loss(batch, trainer.model());
      if (trainer.world().is_main()) result = loss.weights();
      {  // validation leaves the weights
        const torch::NoGradGuard no_grad;
        loss(batch, trainer.model());
        if (trainer.world().is_main()) {
          EXPECT_EQ(loss.weights(), result);
        }
      }
      const auto keeper = loss.keeper();
      const std::string state = keeper->state();
      keeper->reset();
      EXPECT_TRUE(loss.weights().empty());
      keeper->load_state(state);
      if (trainer.world().is_main()) {
        EXPECT_EQ(loss.weights(), result);
      }
      return fit(trainer, std::make_shared<TensorDataset>(TensorDataset{uniform_points(32, 1)}));
    };
    training.run();
    return result;
  };
  const auto one = weights(1);
  ASSERT_EQ(one.size(), 1) << "the weight of the fixed metric stays";
  EXPECT_NEAR(weights(2).at("start"), one.at("start"), 1e-9);
  // w -> (w + ratio) / 2 three times from 1.
  const double ratio = (one.at("start") - 0.125) / 0.875;
  EXPECT_GT(ratio, 0);

  torch::nn::Linear line(1, 1);
  World world(RankMap{}, Communicator(), torch::kCPU);
  const Loss plain = [](const Batch& batch, const Model& model) -> LossResult {
    const torch::Tensor out = model(batch.data()).mean();
    return {4 * out, {{"a", 3 * out}, {"b", out}}};
  };
  const GradWeightedLoss balanced(world, plain, "a", {.weights = {{"b", 2}}, .alpha = 0.9});
  const Batch ones{.tensors = {torch::ones({4, 1})}, .parts = {}};
  const LossResult result = balanced(ones, line);
  // Gradients of a are 3 and 3, of b 1 and 1.
  EXPECT_NEAR(balanced.weights().at("b"), 0.1 * 2 + 0.9 * 3, 1e-6);
  EXPECT_NEAR(result.loss.item<double>(), line->forward(torch::ones({1, 1})).item<double>() * (3 + 2.9),
              1e-5);
  EXPECT_FALSE(line->weight.grad().defined()) << "the gradients of the parameters are left alone";
  EXPECT_THAT(([&] { GradWeightedLoss(world, plain, "c")(ones, line); }),
              ThrowsMessage<ConfigError>(HasSubstr("no metric 'c' to balance the others with: it has a, b")));
}

TEST_F(PhysicsTest, GradWeightsOfShardedParametersAreRefused) {
  const World alone(RankMap{}, Communicator(), torch::kCPU);
  training_.ranks = 2;
  training_.config.zero.stage = 3;
  training_.loss = GradWeightedLoss(alone, residual_loss(equations()), "equation");
  EXPECT_THAT(
      [&] { training_.run(); },
      ThrowsMessage<ConfigError>(HasSubstr("GradWeightedLoss needs the gradients of whole parameters")));
}

TEST_F(PhysicsTest, R3KeepsThePointsWhereTheFitnessIsLarge) {
  R3Dataset data(uniform_points, 6, 0.5, 7);
  const torch::Tensor before = data.points();
  EXPECT_TRUE(torch::equal(R3Dataset(uniform_points, 6, 0.5, 7).points(), before))
      << "the same on every rank";
  const torch::Tensor fitness = torch::tensor({0.1, 0.9, 0.5, 0.2, 0.7, 0.49});
  EXPECT_EQ(data.update(fitness), 3);
  const torch::Tensor after = data.points();
  const torch::Tensor kept = (fitness >= 0.5).unsqueeze(1);
  EXPECT_TRUE(torch::equal(after.masked_select(kept), before.masked_select(kept)));
  EXPECT_FALSE(after.masked_select(~kept).eq(before.masked_select(~kept)).any().item<bool>());
  EXPECT_THAT([&] { data.update(torch::zeros({5})); },
              ThrowsMessage<ConfigError>(HasSubstr("each of 6 points: it has 5")));
  EXPECT_THAT([] { R3Dataset(uniform_points, 3, -1); },
              ThrowsMessage<ConfigError>(HasSubstr("release_threshold")));
  EXPECT_THAT(
      [] {
        R3Dataset([](int64_t, uint64_t) { return torch::zeros({1, 1}); }, 2);
      },
      ThrowsMessage<ConfigError>(HasSubstr("must draw 2 points")));
}

TEST_F(PhysicsTest, R3SamplingResumesWithItsPoints) {
  static constexpr double kReleased = 1;  // points with less than the mean residual
  const auto run = [this](const std::string& folder, std::vector<int64_t> ends, int ranks) {
    Training::Outcome outcome;
    for (const int64_t end : ends) {
      Training training = training_;
      training.ranks = ranks;
      training.config.max_iter = end;
      training.config.checkpoint_every_steps = 1;
      training.config.log_folder = (folder_.path() / folder).string();
      std::vector<std::shared_ptr<R3Dataset>> points;
      for (int rank = 0; rank < ranks; ++rank)
        points.push_back(std::make_shared<R3Dataset>(uniform_points, 32, kReleased));
      std::atomic<int> next = 0;
      // The callbacks of a rank and its fit() are made by the same thread.
      thread_local std::shared_ptr<R3Dataset> own;
      training.make_callbacks = [&]() -> std::vector<std::shared_ptr<Callback>> {
        own = points[static_cast<size_t>(next++)];
        return {std::make_shared<R3Sampling>(own, [](const torch::Tensor& t, const Model& u) {
          const torch::Tensor residual = (derivative(u(t), t) - 2 * t).abs();
          return residual / residual.mean();
        })};
      };
      training.fit = [&](Trainer& trainer, const Loader&) { return fit(trainer, own); };
      outcome = training.run();
      for (const auto& other : points) EXPECT_TRUE(torch::equal(other->points(), points[0]->points()));
      EXPECT_FALSE(torch::equal(points[0]->points(), R3Dataset(uniform_points, 32, kReleased).points()));
    }
    return outcome;
  };
  test::expect_equal_weights(run("parts", {3, 6}, 2), run("whole", {6}, 2));
}

}  // namespace
}  // namespace lockstep
