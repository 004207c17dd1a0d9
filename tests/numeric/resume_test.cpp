// A training that was stopped and goes on ends where one ends that was not stopped.

#include <fmt/format.h>
#include <lockstep/optim.h>

#include <fstream>
#include <map>
#include <mutex>

#include "support/golden.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "train/measured_memory.h"

namespace lockstep {
namespace {

using test::Training;

constexpr int64_t kSteps = 40;  // ten epochs of four steps

class ResumeTest : public testing::Test {
 protected:
  // Saves after every step and keeps all.
  Training straight(const std::string& name) const {
    Training training;
    training.config = test::quiet_config(folder_.path() / name);
    training.config.max_iter = 10;
    training.config.checkpoint_every_steps = 1;
    training.config.checkpoint_keep = 1000;
    return training;
  }

  // The same from a checkpoint of the straight one on, in another folder.
  Training resumed(Training training, const std::string& name, int64_t step) const {
    training.config.resume = (folder_.path() / name / fmt::format("checkpoints/step-{:010}", step)).string();
    training.config.log_folder = (folder_.path() / "resumed").string();
    training.config.checkpoint_every_steps = 0;
    return training;
  }

  // A checkpoint in the middle of an epoch has the sum of the losses of all ranks, so a resumed epoch of
  // several ranks adds in another order. The losses that x86-64 computes have the same sum in both orders.
  static void expect_same_loss(const Training::Outcome& rest, const Training::Outcome& whole, int ranks,
                               int64_t step) {
    if (test::kGoldenTolerance == 0 || ranks == 1) {
      EXPECT_EQ(rest.result.train_loss, whole.result.train_loss) << "from step " << step;
    } else {
      EXPECT_DOUBLE_EQ(rest.result.train_loss, whole.result.train_loss) << "from step " << step;
    }
  }

  // Stopped after each step and gone on.
  void expect_same_from_every_step(const Training& training, const std::string& name,
                                   int64_t steps = kSteps) const {
    const Training::Outcome whole = training.run();
    ASSERT_EQ(whole.result.steps, steps);
    for (int64_t step = 1; step < steps; ++step) {
      const Training::Outcome rest = resumed(training, name, step).run();
      EXPECT_EQ(rest.result.steps, steps);
      expect_same_loss(rest, whole, training.ranks, step);
      test::expect_equal_weights(rest, whole);
      if (HasFailure()) FAIL() << "resumed from step " << step;
    }
  }

  test::TemporaryFolder folder_{"/dev/shm"};
};

TEST_F(ResumeTest, FromEveryStepToTheSameBitsWithEveryOptimizer) {
  const std::map<std::string, Training::MakeOptimizer> optimizers = {
      {"sgd",
       [](auto parameters) {
         return std::make_unique<torch::optim::SGD>(
             parameters, torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(1e-4));
       }},
      {"adam",
       [](auto parameters) {
         return std::make_unique<torch::optim::Adam>(parameters,
                                                     torch::optim::AdamOptions(0.01).amsgrad(true));
       }},
      {"adamw",
       [](auto parameters) {
         return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
       }},
      {"rmsprop",
       [](auto parameters) {
         return std::make_unique<torch::optim::RMSprop>(
             parameters, torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
       }},
      {"adagrad",
       [](auto parameters) {
         return std::make_unique<torch::optim::Adagrad>(parameters, torch::optim::AdagradOptions(0.05));
       }},
      {"lbfgs",
       [](auto parameters) {
         return std::make_unique<torch::optim::LBFGS>(parameters,
                                                      torch::optim::LBFGSOptions(0.1).max_iter(4));
       }},
      {"adam_lbfgs",
       [](auto parameters) {
         return make_adam_lbfgs(parameters, {.switch_step = 20, .lbfgs_lr = 0.1, .lbfgs_max_iter = 4});
       }},
  };
  for (const auto& [name, make_optimizer] : optimizers) {
    SCOPED_TRACE(name);
    Training training = straight(name);
    training.make_optimizer = make_optimizer;
    expect_same_from_every_step(training, name);
  }
}

// Random streams, averaged weights, the schedule's and the stopper's state go on too.
TEST_F(ResumeTest, FromEveryStepWithDropoutAverageScheduleAndAccumulation) {
  Training training = straight("all");
  training.dropout = 0.3;
  training.samples = 128;
  training.config.accumulate_steps = 2;
  training.config.ema_decay = 0.9;
  training.config.clip_grad_norm = 0.5;
  training.prepare = [](Trainer&) {};
  const auto with_callbacks = [&training] {
    Training one = training;
    one.config.callbacks = {
        std::make_shared<ScheduleLearningRate>(cosine_annealing({.t_max = 40}),
                                               ScheduleLearningRate::Per::kStep),
        std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "train_loss", .patience = 100})};
    return one;
  };
  const Training::Outcome whole = with_callbacks().run();
  ASSERT_EQ(whole.result.steps, kSteps);
  for (int64_t step = 1; step < kSteps; ++step) {
    const Training::Outcome rest = resumed(with_callbacks(), "all", step).run();
    test::expect_equal_weights(rest, whole);
    EXPECT_EQ(rest.result.train_loss, whole.result.train_loss) << "from step " << step;
  }
}

TEST_F(ResumeTest, FromEveryStepOnTwoRanks) {
  Training training = straight("two");
  training.ranks = 2;
  training.loader.batch_size = 8;
  expect_same_from_every_step(training, "two");
}

// The running means and variances are part of it.
TEST_F(ResumeTest, FromEveryStepWithBatchNorm) {
  Training training = straight("norm");
  training.batch_norm = true;
  expect_same_from_every_step(training, "norm");
}

// The scale, its age and the skipped steps too. The loss is large enough to overflow.
TEST_F(ResumeTest, FromEveryStepWithAGradientScaler) {
  Training training = straight("fp16");
  training.config.dtype = "float32";
  training.config.precision = "fp16";
  training.loss = [](const Batch& batch, const Model& model) { return mse(batch, model) * 4; };
  const Training::Outcome whole = training.run();
  ASSERT_GT(whole.result.skipped_steps, 0) << "nothing has overflowed";
  for (int64_t step = 1; step < kSteps; ++step) {
    const Training::Outcome rest = resumed(training, "fp16", step).run();
    test::expect_equal_weights(rest, whole);
    EXPECT_EQ(rest.result.skipped_steps, whole.result.skipped_steps) << "from step " << step;
  }
}

// Three of four batches an epoch: what is left of an epoch is not made up for.
TEST_F(ResumeTest, FromEveryStepOfEpochsThatAreCutShort) {
  Training training = straight("cut");
  training.config.max_batches = 3;
  expect_same_from_every_step(training, "cut", 30);
}

// Validations inside epochs, counted metrics, and an end inside an epoch.
TEST_F(ResumeTest, FromEveryStepWithValidationsInsideEpochsAndALimitOfSteps) {
  Training training = straight("inside");
  training.config.val_every_steps = 3;
  training.config.max_steps = 14;
  training.config.best_metric = "val_positive";
  training.config.best_mode = "max";
  training.dropout = 0.3;
  training.loss = [](const Batch& batch, const Model& model) -> LossResult {
    const torch::Tensor output = model(batch.data());
    LossResult result{torch::mse_loss(output, batch.target())};
    result.counts["positive"] = {
        torch::stack({output.gt(0).sum(), torch::tensor(output.numel())}),
        [](const torch::Tensor& sums) { return (sums[0] / sums[1]).item<double>(); }};
    return result;
  };
  training.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
  const Training::Outcome whole = training.run();
  ASSERT_EQ(whole.result.steps, 14);
  ASSERT_EQ(whole.result.metrics.count("train_positive"), 1u);
  for (int64_t step = 1; step < 14; ++step) {
    const Training::Outcome rest = resumed(training, "inside", step).run();
    EXPECT_EQ(rest.result.metrics, whole.result.metrics) << "from step " << step;
    test::expect_equal_weights(rest, whole);
  }
}

// Five batches an epoch out of passes of four: epochs begin in the middle of a pass.
TEST_F(ResumeTest, FromEveryStepOfDataWithoutEnd) {
  Training training = straight("endless");
  training.loader.endless = true;
  training.config.max_batches = 5;
  expect_same_from_every_step(training, "endless", 50);
}

// Each loader has its own place; the shorter one ends the epoch.
TEST_F(ResumeTest, FromEveryStepWithSeveralLoaders) {
  Training training = straight("several");
  training.loss = [](const Batch& batch, const Model& model) {
    return mse(batch["first"], model) + mse(batch["second"], model);
  };
  training.fit = [&training](Trainer& trainer, const Loader& first) {
    const Loader second(training.dataset(), {.batch_size = 9, .shuffle = true, .seed = 5});
    return trainer.fit(std::map<std::string, const Loader*>{{"first", &first}, {"second", &second}});
  };
  expect_same_from_every_step(training, "several");
}

TEST_F(ResumeTest, FromEveryStepWithAPlateauAndValidation) {
  Training training = straight("plateau");
  training.config.val_every = 1;
  training.make_callbacks = [] {
    ReduceOnPlateauOptions options;
    options.monitor = "val_loss";
    options.patience = 0;
    options.threshold = 0.2;  // not better enough most of the time
    return std::vector<std::shared_ptr<Callback>>{std::make_shared<ReduceLearningRateOnPlateau>(options)};
  };
  std::vector<double> rates;
  training.fit = [&](Trainer& trainer, const Loader& data) {
    const FitResult result = trainer.fit(data, data);
    rates.push_back(trainer.optimizer().param_groups()[0].options().get_lr());
    return result;
  };
  expect_same_from_every_step(training, "plateau");
  EXPECT_LT(rates[0], 0.05) << "no plateau was met";
  for (const double rate : rates) EXPECT_EQ(rate, rates[0]);
}

// Counts how often each sample was read in the epoch that is being trained.
class CountingDataset : public Dataset {
 public:
  CountingDataset(std::shared_ptr<Dataset> inner, std::map<int64_t, int>& counts, std::mutex& mutex)
      : inner_(std::move(inner)), counts_(counts), mutex_(mutex) {}

  int64_t size() const override { return inner_->size(); }
  Example get(int64_t index, uint64_t seed) const override {
    const std::lock_guard lock(mutex_);
    ++counts_[index];
    return inner_->get(index, seed);
  }

 private:
  std::shared_ptr<Dataset> inner_;
  std::map<int64_t, int>& counts_;
  std::mutex& mutex_;
};

// 2 ranks, then 4, then 1, then 2, each for ten steps, with changes in the middle of
// epochs: the global batch stays, so the result does.
TEST_F(ResumeTest, OnOtherNumbersOfRanksInTheMiddleOfEpochs) {
  Training training = straight("straight");
  training.ranks = 2;
  training.config.global_batch_size = 16;
  const Training::Outcome whole = training.run();

  std::map<int64_t, int> counts;
  std::mutex mutex;
  Training part = training;
  part.config.log_folder = (folder_.path() / "parts").string();
  part.fit = [&](Trainer& trainer, const Loader& data) {
    return trainer.fit(
        Loader(std::make_shared<CountingDataset>(part.dataset(), counts, mutex), data.options()));
  };
  Training::Outcome last;
  int64_t stop_at = 0;
  for (const int ranks : {2, 4, 1, 2}) {
    stop_at += 10;
    part.ranks = ranks;
    part.config.callbacks = {};
    // What a kill does: the training ends after a step, and its checkpoint is there.
    struct Killed {};
    part.prepare = [](Trainer&) {};
    if (stop_at < kSteps) {
      part.config.callbacks = {std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchStart},
                                                          [stop_at](Trainer& trainer) {
                                                            if (trainer.result().step == stop_at)
                                                              throw Killed();
                                                          })};
      EXPECT_THROW(part.run(), Killed);
    } else {
      last = part.run();
    }
  }
  EXPECT_EQ(last.result.steps, kSteps);
  test::expect_close_weights(last, whole);
  EXPECT_NEAR(last.result.train_loss, whole.result.train_loss, 1e-12);
  // A batch that was read for the step at which it was stopped is read again: three stops.
  int64_t reads = 0;
  for (const auto& [index, count] : counts) {
    EXPECT_GE(count, 10) << index;
    reads += count;
  }
  EXPECT_EQ(counts.size(), 64u);
  EXPECT_EQ(reads, 10 * 64 + 3 * 16);
}

TEST_F(ResumeTest, MaxIterIsTheTotalAndNothingIsTrainedTwice) {
  Training training = straight("total");
  const Training::Outcome whole = training.run();
  const Training::Outcome again = training.run();
  EXPECT_EQ(again.result.epochs, 10);
  EXPECT_EQ(again.result.steps, kSteps);
  test::expect_equal_weights(again, whole);
}

TEST_F(ResumeTest, NeverStartsAnew) {
  Training training = straight("never");
  training.config.max_iter = 3;
  const Training::Outcome first = training.run();
  training.config.resume = "never";
  training.config.max_iter = 1;
  EXPECT_EQ(training.run().result.steps, 4);
}

TEST_F(ResumeTest, ABrokenCheckpointIsPassedOver) {
  Training training = straight("broken");
  const Training::Outcome whole = training.run();
  const auto checkpoints = folder_.path() / "broken/checkpoints";
  const auto shard = checkpoints / "step-0000000040/shard-00000-of-00001.safetensors";
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('\x55');
  }
  std::filesystem::resize_file(checkpoints / "step-0000000039/manifest.json", 20);
  const Training::Outcome again = training.run();
  EXPECT_EQ(again.result.steps, kSteps);
  test::expect_equal_weights(again, whole);
}

TEST_F(ResumeTest, AnotherModelIsRefusedByTheNamesOfItsParameters) {
  Training training = straight("model");
  training.run();
  Training other = training;
  other.dropout = 0;
  other.fit = [](Trainer& trainer, const Loader& data) {
    torch::nn::Sequential wide(torch::nn::Linear(1, 17), torch::nn::Linear(17, 1));
    torch::optim::SGD optimizer(wide->parameters(), 0.1);
    World& world = const_cast<World&>(trainer.world());
    Trainer another(world, wide, optimizer, trainer.config());
    return another.fit(data);
  };
  EXPECT_THAT([&] { other.run(); },
              testing::ThrowsMessage<ConfigError>(
                  testing::AllOf(testing::HasSubstr("is of another model"), testing::HasSubstr("0.weight"),
                                 testing::HasSubstr("[16, 1]"), testing::HasSubstr("[17, 1]"))));
}

// The most that tensors of a training take beyond what they take when it saves nothing.
TEST_F(ResumeTest, SavesInTheForegroundKeepNoCopyOfTheState) {
  static constexpr int64_t kWidth = 400;
  Training wide = straight("wide");
  wide.config.max_iter = 2;
  wide.make_model = [] {
    return Model(torch::nn::Sequential(torch::nn::Linear(1, kWidth), torch::nn::Tanh(),
                                       torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh(),
                                       torch::nn::Linear(kWidth, 1)));
  };
  wide.make_optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
  };
  const auto peak_of = [&](bool saves, bool beside) {
    Training changed = wide;
    changed.config.checkpoint_every_steps = saves ? 1 : 0;
    changed.config.checkpoint_async = beside;
    changed.config.resume = "never";
    const train::CountedMemory memory;
    changed.run();
    return memory.peak_bytes();
  };
  const int64_t state = 3 * kWidth * kWidth * 8;  // a weight and what Adam keeps of it, in float64
  const int64_t none = peak_of(false, true);
  EXPECT_GT(peak_of(true, true) - none, state / 2) << "the copy is what is looked for";
  EXPECT_LT(peak_of(true, false) - none, state / 10);
}

}  // namespace
}  // namespace lockstep
