#include <lockstep/c10d.h>
#include <lockstep/lockstep.h>

#include <filesystem>

#include "support/rank_threads.h"

namespace lockstep {
namespace {

struct Trained {
  FitResult result;
  std::vector<torch::Tensor> parameters;
};

class TrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/lockstep-trainer-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  TrainConfig config() const {
    TrainConfig config;
    config.max_iter = 8;
    config.dtype = "float64";
    config.root_folder = folder_.string();
    config.verbose = false;
    return config;
  }

  // Ranks share one data set; each starts from other weights, of which rank 0's count.
  Trained train(int ranks, int64_t samples, int64_t batch_size_per_rank, const TrainConfig& config) {
    std::vector<Trained> all(ranks);
    test::run_ranks(ranks, [&](int rank, c10::intrusive_ptr<c10d::Store> store) {
      RankMap map;
      map.rank = rank;
      map.world_size = ranks;
      World world(map, make_communicator(std::move(store), rank, ranks, {.backend = "shm"}), torch::kCPU);
      const auto x = torch::linspace(0, 1, samples, torch::kFloat64).reshape({-1, 1});
      torch::nn::Sequential model(torch::nn::Linear(1, 16), torch::nn::ReLU(), torch::nn::Linear(16, 1));
      set_weights(*model, /*offset=*/rank);
      torch::optim::SGD optimizer(model->parameters(), 0.05);
      Trainer trainer(world, model, optimizer, config, mse);
      all[rank].result = trainer.fit(Loader(TensorDataset({x, torch::sin(2 * M_PI * x)}),
                                            {.batch_size = batch_size_per_rank, .shuffle = true}));
      all[rank].parameters = model->parameters();
    });
    for (const Trained& one : all) expect_equal(one, all[0]);
    return all[0];
  }

  static void set_weights(torch::nn::SequentialImpl& model, int offset) {
    const torch::NoGradGuard no_grad;
    int64_t k = offset;
    for (torch::Tensor& parameter : model.parameters()) {
      parameter.copy_(
          torch::sin(torch::arange(k, k + parameter.numel(), torch::kFloat64)).reshape(parameter.sizes()));
      k += parameter.numel();
    }
  }

  static void expect_equal(const Trained& a, const Trained& b) {
    for (size_t i = 0; i < a.parameters.size(); ++i)
      EXPECT_TRUE(torch::equal(a.parameters[i], b.parameters[i]));
    // Without an epoch there is no loss.
    if (a.result.epochs > 0) EXPECT_EQ(a.result.train_loss, b.result.train_loss);
    EXPECT_EQ(a.result.steps, b.result.steps);
    EXPECT_EQ(a.result.run_folder, b.result.run_folder);
  }

  static void expect_close(const Trained& a, const Trained& b) {
    for (size_t i = 0; i < a.parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(a.parameters[i], b.parameters[i], 1e-11, 1e-12)) << i;
    }
    EXPECT_NEAR(a.result.train_loss, b.result.train_loss, 1e-12);
  }

  std::filesystem::path folder_;
};

TEST_F(TrainerTest, SameNumbersOnOneTwoAndFourRanks) {
  const Trained one = train(1, 128, 32, config());
  EXPECT_EQ(one.result.steps, 8 * 4);
  expect_close(train(2, 128, 16, config()), one);
  expect_close(train(4, 128, 8, config()), one);
}

TEST_F(TrainerTest, LearnsAndReportsTheLossOfTheLastEpoch) {
  TrainConfig longer = config();
  longer.max_iter = 200;
  EXPECT_LT(train(2, 128, 16, longer).result.train_loss, 0.5 * train(2, 128, 16, config()).result.train_loss);
}

TEST_F(TrainerTest, SamplesThatDoNotDivideHangNobody) {
  const Trained trained = train(3, 100, 16, config());
  EXPECT_EQ(trained.result.steps, 8 * 3) << "34 samples a rank, 16 at a time";
}

TEST_F(TrainerTest, RunsExactlyTheEpochsAskedFor) {
  TrainConfig none = config();
  none.max_iter = 0;
  EXPECT_EQ(train(2, 32, 16, none).result.epochs, 0);
  none.max_iter = 1;
  EXPECT_EQ(train(2, 32, 16, none).result.epochs, 1);
}

TEST_F(TrainerTest, NamesTheParameterThatDiffersBetweenRanks) {
  EXPECT_THAT(
      [] {
        test::run_ranks(2, [](int rank, c10::intrusive_ptr<c10d::Store> store) {
          RankMap map;
          map.rank = rank;
          map.world_size = 2;
          World world(map, make_communicator(std::move(store), rank, 2, {.backend = "shm"}), torch::kCPU);
          torch::nn::Sequential model(torch::nn::Linear(1, rank == 0 ? 16 : 17), torch::nn::Linear(16, 1));
          torch::optim::SGD optimizer(model->parameters(), 0.05);
          Trainer trainer(world, model, optimizer, {}, mse);
        });
      },
      testing::ThrowsMessage<ConfigError>(testing::HasSubstr("0.weight")));
}

}  // namespace
}  // namespace lockstep
