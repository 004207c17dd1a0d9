// Training by search: candidates over all ranks, and the switch back to gradients.

#include <lockstep/c10d.h>

#include "support/rank_threads.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

class GradientFreeTrainingTest : public testing::Test {
 protected:
  GradientFreeTrainingTest() {
    config_ = test::quiet_config(folder_.path());
    config_.max_iter = 40;
  }

  struct Outcome {
    FitResult result;
    at::Tensor weights;
    double loss = 0;
  };

  // A line through noiseless points.
  Outcome train(int ranks, const TrainConfig& config) const {
    Outcome outcome;
    test::run_ranks(ranks, [&](int rank, c10::intrusive_ptr<c10d::Store> store) {
      RankMap map;
      map.rank = rank;
      map.world_size = ranks;
      World world(map, make_communicator(std::move(store), rank, ranks, {.backend = "shm"}), torch::kCPU);
      const auto x = torch::linspace(-1, 1, 32, torch::kFloat64).reshape({-1, 1});
      const Loader data(TensorDataset({x, 3 * x - 1}), {.batch_size = 32});
      torch::nn::Linear model(1, 1);
      model->to(torch::kFloat64);
      const torch::NoGradGuard no_grad;
      for (at::Tensor parameter : model->parameters()) parameter.zero_();
      const auto search = make_cma_es(get_parameters(*model), {.sigma = 0.5, .seed = 3});
      Trainer trainer(world, model, *search, config);
      const FitResult result = trainer.fit(data);
      const double loss = trainer.test(data).loss;
      EXPECT_THROW(trainer.optimizer(), ConfigError);
      if (rank == 0) outcome = {result, get_parameters(*model), loss};
    });
    return outcome;
  }

  test::TemporaryFolder folder_;
  TrainConfig config_;
};

TEST_F(GradientFreeTrainingTest, EndsOnTheBestPoint) {
  const Outcome outcome = train(1, config_);
  EXPECT_LT(outcome.loss, 1e-4);
  EXPECT_TRUE(torch::allclose(outcome.weights, torch::tensor({3.0, -1.0}, torch::kFloat64), 0.02, 0.02));
}

TEST_F(GradientFreeTrainingTest, RanksShareTheCandidatesNotTheResult) {
  const Outcome one = train(1, config_);
  for (const int ranks : {2, 3})
    EXPECT_TRUE(torch::equal(train(ranks, config_).weights, one.weights)) << ranks;
}

TEST_F(GradientFreeTrainingTest, GoesOnFromACheckpoint) {
  const Outcome straight = train(2, config_);
  TrainConfig config = config_;
  config.log_folder += "/parts";
  config.checkpoint_every = 1;
  config.max_iter = 17;
  train(2, config);
  config.max_iter = 40;
  const Outcome parts = train(1, config);
  EXPECT_TRUE(torch::equal(parts.weights, straight.weights));
}

TEST_F(GradientFreeTrainingTest, ScopesSwitchAndRestore) {
  test::Training training;
  training.config = config_;
  training.config.max_iter = 2;
  training.fit = [](Trainer& trainer, const Loader& data) {
    torch::optim::Optimizer& own = trainer.optimizer();
    {
      const auto search = make_random_search(get_parameters(*trainer.model().module()));
      const auto scope = trainer.disable_grad_opt(*search);
      EXPECT_THROW(trainer.optimizer(), ConfigError);
      trainer.fit(data);
      {
        torch::optim::Adam adam(trainer.model().module()->parameters(), 0.01);
        const auto inner = trainer.enable_grad_opt(adam);
        EXPECT_EQ(&trainer.optimizer(), &adam);
      }
      EXPECT_THROW(trainer.optimizer(), ConfigError);
    }
    EXPECT_EQ(&trainer.optimizer(), &own);
    return trainer.fit(data);
  };
  EXPECT_EQ(training.run().result.epochs, 2);
}

}  // namespace
}  // namespace lockstep
