// What the fields of a TrainConfig do, and what a Trainer does with data.

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/temporary_folder.h"
#include "support/training.h"
#include "train/gpu_log.h"

namespace lockstep {
namespace {

using test::Training;
using testing::HasSubstr;
using testing::ThrowsMessage;

class TrainerOptionsTest : public testing::Test {
 protected:
  TrainerOptionsTest() { training_.config = test::quiet_config(folder_.path() / "run"); }

  Training::Outcome with(const std::function<void(Training&)>& change) const {
    Training changed = training_;
    changed.config.log_folder = (folder_.path() / fmt::format("run-{}", ++runs_)).string();
    change(changed);
    return changed.run();
  }

  void expect_refused(const std::function<void(Training&)>& change, const std::string& text) const {
    EXPECT_THAT([&] { with(change); }, ThrowsMessage<ConfigError>(HasSubstr(text)));
  }

  test::TemporaryFolder folder_;
  Training training_;
  mutable int runs_ = 0;
};

TEST_F(TrainerOptionsTest, AccumulationEqualsTheLargerBatch) {
  const auto whole = with([](Training& training) { training.loader.batch_size = 32; });
  for (const int ranks : {1, 2, 4}) {
    const auto parts = with([ranks](Training& training) {
      training.ranks = ranks;
      training.loader.batch_size = 16 / ranks;
      training.config.accumulate_steps = 2;
    });
    EXPECT_EQ(parts.result.steps, whole.result.steps);
    test::expect_close_weights(parts, whole);
  }
}

TEST_F(TrainerOptionsTest, AccumulationWeighsTheShortLastBatch) {
  const auto uneven = [](Training& training) {
    training.samples = 24;
    training.loader.shuffle = false;
  };
  const auto whole = with([&](Training& training) {
    uneven(training);
    training.loader.batch_size = 24;
  });
  const auto parts = with([&](Training& training) {
    uneven(training);
    training.loader.batch_size = 16;
    training.config.accumulate_steps = 2;
  });
  test::expect_close_weights(parts, whole);
}

// Of the accumulated batches one is on the device, or two: here they are converted, which is a copy
// too.
TEST_F(TrainerOptionsTest, AccumulatedBatchesAreCopiedWhenTheyAreNeeded) {
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  std::vector<Weak> copies;
  size_t most = 0;
  with([&](Training& training) {
    training.config.max_iter = 1;
    training.config.dtype = "float32";  // the data are float64
    training.config.accumulate_steps = 4;
    training.loss = [&](const Batch& batch, const Model& model) {
      copies.emplace_back(batch.data().storage().getWeakStorageImpl());
      most = std::max(most,
                      static_cast<size_t>(std::count_if(copies.begin(), copies.end(),
                                                        [](const Weak& copy) { return !copy.expired(); })));
      return mse(batch, model);
    };
  });
  EXPECT_EQ(copies.size(), 4u);
  EXPECT_LE(most, 2u);
}

TEST_F(TrainerOptionsTest, GlobalBatchSizeGivesTheSameResultOnAnyNumberOfRanks) {
  const auto one = with([](Training& training) { training.config.global_batch_size = 16; });
  for (const int ranks : {2, 4}) {
    test::expect_close_weights(with([ranks](Training& training) {
                                 training.ranks = ranks;
                                 training.config.global_batch_size = 16;
                               }),
                               one);
  }
  expect_refused(
      [](Training& training) {
        training.ranks = 3;
        training.config.global_batch_size = 16;
      },
      "global_batch_size 16 does not divide by 3 rank(s) times accumulate_steps 1: set it to a multiple of "
      "3");
}

TEST_F(TrainerOptionsTest, BatchSizeOverridesTheLoaders) {
  EXPECT_EQ(with([](Training& training) { training.config.batch_size = 4; }).result.steps, 8 * 16);
  EXPECT_EQ(with([](Training& training) {
              training.config.batch_size = 4;
              training.config.max_batches = 3;
            }).result.steps,
            8 * 3);
}

TEST_F(TrainerOptionsTest, ClippingBoundsTheStep) {
  const auto step_of = [this](const std::function<void(TrainConfig&)>& change) {
    const auto first = with([](Training& training) { training.config.max_iter = 0; });
    const auto second = with([&](Training& training) {
      training.config.max_iter = 1;
      training.config.max_batches = 1;
      training.make_optimizer = [](auto parameters) {
        return std::make_unique<torch::optim::SGD>(parameters, 1.0);
      };
      change(training.config);
    });
    double squares = 0;
    double greatest = 0;
    for (size_t i = 0; i < first.weights.size(); ++i) {
      const torch::Tensor change_of = second.weights[i] - first.weights[i];
      squares += change_of.square().sum().item<double>();
      greatest = std::max(greatest, change_of.abs().max().item<double>());
    }
    return std::pair(std::sqrt(squares), greatest);
  };
  EXPECT_GT(step_of([](TrainConfig&) {}).first, 1e-2);
  EXPECT_NEAR(step_of([](TrainConfig& config) { config.clip_grad_norm = 1e-3; }).first, 1e-3, 1e-6);
  EXPECT_NEAR(step_of([](TrainConfig& config) { config.clip_grad_value = 1e-4; }).second, 1e-4, 1e-12);
}

TEST_F(TrainerOptionsTest, AveragedWeightsEvaluateAndTheWeightsComeBack) {
  double during = 0;
  double averaged = 0;
  const auto outcome = with([&](Training& training) {
    training.config.ema_decay = 0.9;
    training.fit = [&](Trainer& trainer, const Loader& data) {
      FitResult result = trainer.fit(data);
      averaged = trainer.validate(data).loss;
      return result;
    };
  });
  const auto plain = with([&](Training& training) {
    training.fit = [&](Trainer& trainer, const Loader& data) {
      FitResult result = trainer.fit(data);
      during = trainer.validate(data).loss;
      return result;
    };
  });
  test::expect_equal_weights(outcome, plain);
  EXPECT_NE(during, averaged);
}

TEST_F(TrainerOptionsTest, MixedPrecisionLearns) {
  const auto train = [this](const std::string& precision) {
    return with([&](Training& training) {
             training.config.dtype = "float32";
             training.config.precision = precision;
             training.config.max_iter = 60;
           })
        .result;
  };
  const double full = train("fp32").train_loss;
  EXPECT_NEAR(train("bf16").train_loss, full, 0.1 * full);
  EXPECT_NEAR(train("fp16").train_loss, full, 0.1 * full);
}

TEST_F(TrainerOptionsTest, Fp16LeavesOutTheStepsThatOverflowOnOneRankOnAllAndSaysHowMany) {
  const auto outcome = with([](Training& training) {
    training.ranks = 2;
    training.loader.batch_size = 8;
    training.config.dtype = "float32";
    training.config.precision = "fp16";
    training.config.max_iter = 1;
    training.loss = [](const Batch& batch, const Model& model) {
      // Only the rank that holds the first sample overflows.
      const bool overflows = batch.data().eq(0).any().item<bool>();
      return mse(batch, model) * (overflows ? 1e38 : 1e-3);
    };
  });
  EXPECT_EQ(outcome.result.steps, 4);
  EXPECT_EQ(outcome.result.skipped_steps, 1);
}

TEST_F(TrainerOptionsTest, SameSeedSameBitsOtherSeedOtherBits) {
  const auto train = [this](uint64_t seed) {
    return with([seed](Training& training) {
      training.dropout = 0.5;
      training.config.seed = seed;
      training.config.deterministic = true;
    });
  };
  const auto first = train(1);
  test::expect_equal_weights(train(1), first);
  EXPECT_FALSE(torch::equal(train(2).weights[0], first.weights[0]));
}

TEST_F(TrainerOptionsTest, EvaluationCountsEverySampleOnceOnAnyNumberOfRanks) {
  const auto evaluate = [this](int ranks) {
    Evaluation evaluation;
    at::Tensor outputs;
    with([&](Training& training) {
      training.ranks = ranks;
      training.samples = 101;
      training.config.max_iter = 0;
      training.fit = [&](Trainer& trainer, const Loader& data) {
        const Evaluation own = trainer.test(data);
        const at::Tensor predicted = trainer.predict(data);
        if (trainer.world().is_main()) {
          evaluation = own;
          outputs = predicted;
        }
        return FitResult();
      };
    });
    return std::pair(evaluation, outputs);
  };
  const auto [one, outputs] = evaluate(1);
  EXPECT_EQ(one.samples, 101);
  for (const int ranks : {2, 3, 4}) {
    const auto [several, others] = evaluate(ranks);
    EXPECT_EQ(several.samples, 101);
    EXPECT_NEAR(several.loss, one.loss, 1e-14);
    EXPECT_TRUE(torch::allclose(others, outputs, 1e-14, 1e-15)) << "in the order of the data";
  }
}

TEST_F(TrainerOptionsTest, EvaluatesSeveralLoadersByName) {
  for (const int ranks : {1, 2}) {
    with([&](Training& training) {
      training.ranks = ranks;
      training.config.max_iter = 1;
      training.config.val_every = 1;
      training.loss = [](const Batch& batch, const Model& model) {
        return mse(batch["inside"], model) + mse(batch["border"], model);
      };
      training.fit = [](Trainer& trainer, const Loader& data) {
        const Loader border(
            TensorDataset({torch::ones({8, 1}, torch::kFloat64), torch::zeros({8, 1}, torch::kFloat64)}),
            {.batch_size = 2});
        const std::map<std::string, const Loader*> both{{"inside", &data}, {"border", &border}};
        const FitResult result = trainer.fit(both, both);
        EXPECT_TRUE(result.metrics.count("val_loss"));
        // 64 in batches of 16, 8 in batches of 2: until the end of either.
        const Evaluation evaluation = trainer.test(both);
        EXPECT_EQ(evaluation.samples, 72);
        EXPECT_TRUE(std::isfinite(evaluation.loss));
        return result;
      };
    });
  }
}

TEST_F(TrainerOptionsTest, PredictsWithMoreRanksThanSamples) {
  with([](Training& training) {
    training.ranks = 4;
    training.samples = 2;
    training.config.max_iter = 0;
    training.fit = [](Trainer& trainer, const Loader& data) {
      EXPECT_EQ(trainer.predict(data).sizes(), (std::vector<int64_t>{2, 1}));
      EXPECT_EQ(trainer.test(data).samples, 2);
      return FitResult();
    };
  });
}

TEST_F(TrainerOptionsTest, MetricsAreMeansOverAllSamples) {
  const auto outcome = with([](Training& training) {
    training.ranks = 2;
    training.loader.batch_size = 8;
    training.config.max_iter = 1;
    training.loss = [](const Batch& batch, const Model& model) {
      return LossResult(mse(batch, model), {{"first", batch.data().mean()}});
    };
  });
  EXPECT_NEAR(outcome.result.metrics.at("train_first"), 0.5, 1e-12);
}

TEST_F(TrainerOptionsTest, TrainsWithoutDataOnSeveralLoadersAndWithoutEnd) {
  EXPECT_EQ(with([](Training& training) {
              training.loss = [](const Batch& batch, const Model& model) {
                EXPECT_TRUE(batch.tensors.empty());
                return model(torch::ones({1, 1}, torch::kFloat64)).square().mean();
              };
              training.fit = [](Trainer& trainer, const Loader&) { return trainer.fit(); };
            }).result.steps,
            8);
  EXPECT_EQ(with([](Training& training) {
              training.ranks = 2;
              training.loss = [](const Batch& batch, const Model& model) {
                return mse(batch["a"], model) + mse(batch["b"], model);
              };
              training.fit = [](Trainer& trainer, const Loader& data) {
                const Loader small = data.with_batch_size(4);
                return trainer.fit(std::map<std::string, const Loader*>{{"a", &data}, {"b", &small}});
              };
            }).result.steps,
            8 * 2)
      << "the shorter one ends the epoch";
  const auto endless = [this](std::optional<int64_t> max_batches) {
    return with([&](Training& training) {
             training.loader.endless = true;
             training.config.max_batches = max_batches;
           })
        .result.steps;
  };
  EXPECT_EQ(endless({}), 8);
  EXPECT_EQ(endless(10), 80);
}

TEST_F(TrainerOptionsTest, ACustomStepTakesTheOrdinaryOnesPlace) {
  const auto ordinary = with([](Training&) {});
  int calls = 0;
  const auto custom = with([&](Training& training) {
    training.prepare = [&](Trainer& trainer) {
      trainer.set_optimize_step([&](const StepContext& context) {
        ++calls;
        LossResult result = context.closure();
        context.optimizer.step();
        return result;
      });
    };
  });
  EXPECT_EQ(calls, 32);
  test::expect_equal_weights(custom, ordinary);
}

TEST_F(TrainerOptionsTest, LbfgsTakesTheSameStepsOnAllRanks) {
  const auto train = [this](int ranks) {
    return with([ranks](Training& training) {
      training.ranks = ranks;
      training.loader = {.batch_size = 64 / ranks};
      training.make_optimizer = [](auto parameters) {
        return std::make_unique<torch::optim::LBFGS>(parameters, torch::optim::LBFGSOptions(0.1).max_iter(3));
      };
    });
  };
  // A search amplifies what rounding does to the sums.
  test::expect_close_weights(train(2), train(1), /*tolerance=*/1e-7);
}

TEST_F(TrainerOptionsTest, BadInputIsSaidAtOnce) {
  expect_refused([](Training& training) { training.samples = 0; },
                 "nothing to train on: the dataset is empty");
  expect_refused(
      [](Training& training) {
        training.samples = 8;
        training.loader.drop_last = true;
      },
      "8 samples over 1 rank(s) do not fill a batch of 16, and drop_last leaves out the rest");
  expect_refused([](Training& training) { training.config.val_every = 1; },
                 "val_every is 1, and fit() got no data for validation: give it some, or set val_every to 0");
  expect_refused([](Training& training) { training.loss = Loss(); }, "a trainer needs a loss");
  expect_refused([](Training& training) { training.config.log_folder = "/proc/nowhere"; },
                 "cannot make a run folder at log_folder '/proc/nowhere'");
  expect_refused(
      [](Training& training) {
        training.loss = [](const Batch& batch, const Model& model) { return mse(batch, model) * NAN; };
      },
      "the loss is nan in epoch 1, step 1 on rank 0");
  expect_refused(
      [](Training& training) {
        training.loss = [](const Batch& batch, const Model& model) { return model(batch.data()); };
      },
      "the loss of a batch must be one number: it has 16");
  expect_refused(
      [](Training& training) {
        training.loss = [](const Batch& batch, const Model& model) {
          return model(batch.data().to(torch::kLong)).sum();
        };
      },
      "the model or the loss failed on a batch of Double[16, 1], Double[16, 1], parameters are float64");
  expect_refused(
      [](Training& training) {
        training.loss = [](const Batch& batch, const Model&) { return batch.data().sum(); };
      },
      "the loss does not depend on any parameter");
  expect_refused([](Training& training) { training.config.resume = "/nowhere"; },
                 "resume: '/nowhere' is no checkpoint");
  EXPECT_THAT([] { loss_named("huber"); }, ThrowsMessage<ConfigError>(HasSubstr("unknown loss 'huber'")));
}

TEST_F(TrainerOptionsTest, TwoRunsInOneFolderAreKeptApart) {
  expect_refused(
      [](Training& training) {
        training.fit = [](Trainer& trainer, const Loader& data) {
          TrainConfig config = trainer.config();
          config.callbacks = {
              std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainStart}, [&](Trainer& first) {
                World another(RankMap{}, Communicator(), torch::kCPU);
                Trainer second(another, first.model(), first.optimizer(), trainer.config());
                second.fit(data);
              })};
          Trainer first(const_cast<World&>(trainer.world()), trainer.model(), trainer.optimizer(), config);
          return first.fit(data);
        };
      },
      std::to_string(::getpid()));
}

TEST_F(TrainerOptionsTest, TheRunFolderHoldsConfigurationAndMetrics) {
  const auto outcome = with([](Training& training) {
    training.config.tracking_tool = "tensorboard";
    training.config.hyperparams = {{"lr", 0.05}};
    training.config.log_model = true;
    training.config.write_every = 4;
    training.config.log_every = 0;
  });
  const std::filesystem::path folder = outcome.result.run_folder;
  std::ifstream config(folder / "config.json");
  EXPECT_EQ(nlohmann::json::parse(config).at("write_every"), 4);
  std::ifstream metrics(folder / "metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(metrics, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 5u) << "hyperparameters, the model, two of metrics, hyperparameters again";
  EXPECT_EQ(lines[0].at("hyperparameters"), (nlohmann::json{{"lr", 0.05}}));
  EXPECT_FALSE(lines[0].contains("final_metrics"));
  EXPECT_EQ(lines[3].at("epoch"), 8);
  EXPECT_EQ(lines[3].at("train_loss").get<double>(), outcome.result.train_loss);
  EXPECT_EQ(lines[4].at("final_metrics").at("train_loss").get<double>(), outcome.result.train_loss);
  EXPECT_TRUE(std::filesystem::exists(folder / "model.safetensors"));
}

TEST_F(TrainerOptionsTest, ARunHasAReportAndAJobAShape) {
  const auto outcome = with([](Training& training) {
    training.ranks = 2;
    training.make_callbacks = [] {
      return train::gpu_log(std::chrono::seconds(1));
    };  // writes nothing on CPUs
    training.fit = [](Trainer& trainer, const Loader& data) {
      EXPECT_THAT([&] { trainer.write_report(); }, ThrowsMessage<ConfigError>(HasSubstr("call fit() first")));
      const JobShape shape = job_shape(trainer.world());
      EXPECT_EQ(shape.processes, 2);
      EXPECT_EQ(shape.nodes, 1);
      EXPECT_EQ(shape.gpus, 0);
      EXPECT_GE(trainer.world().cpu_threads(), 1);
      FitResult result = trainer.fit(data);
      trainer.write_report();
      return result;
    };
  });
  const std::filesystem::path folder = outcome.result.run_folder;
  EXPECT_TRUE(std::filesystem::is_regular_file(folder / "report.html"));
  EXPECT_FALSE(std::filesystem::exists(folder / "gpu.csv"));
}

TEST_F(TrainerOptionsTest, AFailedRunHasItsHyperparameters) {
  std::filesystem::path folder;
  expect_refused(
      [&](Training& training) {
        folder = training.config.log_folder;
        training.config.hyperparams = {{"lr", 0.05}};
        training.loss = [](const Batch& batch, const Model& model) { return mse(batch, model) * NAN; };
      },
      "the loss is nan");
  std::ifstream metrics(folder / "metrics.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(metrics, line));
  EXPECT_EQ(nlohmann::json::parse(line).at("hyperparameters").at("lr"), 0.05);
}

TEST_F(TrainerOptionsTest, BestOnlyKeepsWhatValidatedBest) {
  int64_t validations = 0;
  const auto outcome = with([&](Training& training) {
    training.config.val_every = 1;
    training.config.checkpoint_best_only = true;
    // The third is the best.
    training.config.validation_criterion = [&](double, double, double) { return ++validations == 3; };
    training.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
  });
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(outcome.result.run_folder) / "checkpoints")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, testing::ElementsAre("step-0000000008")) << "the validation after the second epoch";
}

TEST_F(TrainerOptionsTest, ASecondTrainingHasItsOwnFolderAndForgetsTheFirst) {
  std::vector<FitResult> results;
  with([&](Training& training) {
    training.config.val_every = 1;
    training.config.checkpoint_every = 1;
    training.make_callbacks = [] {
      return std::vector<std::shared_ptr<Callback>>{
          std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 1000})};
    };
    training.fit = [&](Trainer& trainer, const Loader& data) {
      results.push_back(trainer.fit(data, data));
      results.push_back(trainer.fit(data, data));
      return results.back();
    };
  });
  EXPECT_EQ(results[1].epochs, 8);
  EXPECT_EQ(results[1].steps, results[0].steps) << "trained again, not gone on from the end of the first";
  EXPECT_EQ(results[1].run_folder, results[0].run_folder + "-2");
}

TEST_F(TrainerOptionsTest, ASaveBetweenValidationsDoesNotTakeTheBestOnesPlace) {
  const auto outcome = with([](Training& training) {
    training.config.max_iter = 3;
    training.config.val_every = 2;
    training.config.checkpoint_every = 1;
    training.config.checkpoint_keep = 1;
    training.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
  });
  const auto checkpoints = std::filesystem::path(outcome.result.run_folder) / "checkpoints";
  EXPECT_TRUE(std::filesystem::exists(checkpoints / "step-0000000008")) << "validated, the best";
  EXPECT_TRUE(std::filesystem::exists(checkpoints / "step-0000000012")) << "the newest";
}

TEST_F(TrainerOptionsTest, AStopStaysAStopUntilMoreEpochsAreAskedFor) {
  const auto train = [this](int64_t max_iter) {
    Training training = training_;
    training.config.max_iter = max_iter;
    training.config.checkpoint_every = 1;
    training.config.trainstop_criterion = [](const TrainResult& result) { return result.iteration == 3; };
    return training.run().result;
  };
  EXPECT_EQ(train(8).epochs, 3);
  const FitResult again = train(8);
  EXPECT_EQ(again.epochs, 3) << "not one more each time";
  EXPECT_EQ(again.stopped, "trainstop_criterion");
  EXPECT_EQ(train(9).epochs, 9);
}

TEST_F(TrainerOptionsTest, OneRankThatStopsBeforeTheFirstEpochStopsAll) {
  const auto outcome = with([](Training& training) {
    training.ranks = 2;
    training.make_callbacks = [] {
      return std::vector<std::shared_ptr<Callback>>{
          std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainStart}, [](Trainer& trainer) {
            if (trainer.world().rank() == 1) trainer.stop_training("nothing to do");
          })};
    };
  });
  EXPECT_EQ(outcome.result.epochs, 0);
}

TEST_F(TrainerOptionsTest, ACheckpointWithALayerMoreIsRefused) {
  const auto saved = with([](Training& training) {
    training.config.checkpoint_every = 8;
    training.fit = [](Trainer& trainer, const Loader& data) {
      torch::nn::Sequential deep(torch::nn::Linear(1, 1), torch::nn::Linear(1, 1), torch::nn::Linear(1, 1));
      torch::optim::SGD optimizer(deep->parameters(), 0.01);
      return Trainer(const_cast<World&>(trainer.world()), deep, optimizer, trainer.config()).fit(data);
    };
  });
  expect_refused(
      [&](Training& training) {
        training.config.resume = saved.result.run_folder;
        training.fit = [](Trainer& trainer, const Loader& data) {
          torch::nn::Sequential flat(torch::nn::Linear(1, 1), torch::nn::Linear(1, 1));
          torch::optim::SGD optimizer(flat->parameters(), 0.01);
          return Trainer(const_cast<World&>(trainer.world()), flat, optimizer, trainer.config()).fit(data);
        };
      },
      "2.weight");
}

TEST_F(TrainerOptionsTest, ALearningRateThatParametersCannotHoldIsRefused) {
  const auto with_rate = [](Training& training, const char* dtype, double rate) {
    training.config.dtype = dtype;
    training.config.max_iter = 0;
    training.make_optimizer = [rate](auto parameters) {
      return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(rate));
    };
  };
  expect_refused([&](Training& training) { with_rate(training, "float32", 1e300); },
                 "the learning rate must be a number of at most 3.40282e+38: 1e+300");
  expect_refused([&](Training& training) { with_rate(training, "float64", INFINITY); },
                 "of at most 1.79769e+308: inf");
  with([&](Training& training) { with_rate(training, "float64", 1e300); });
}

TEST_F(TrainerOptionsTest, WhatDoesNotGoTogetherIsRefused) {
  expect_refused(
      [](Training& training) {
        training.config.dtype = "float32";
        training.config.precision = "fp16";
        training.prepare = [](Trainer& trainer) {
          trainer.set_optimize_step([](const StepContext& context) { return context.closure(); });
        };
      },
      "precision fp16 may have to leave out a step, and the program's own step (set_optimize_step) cannot: "
      "set "
      "precision to bf16 or fp32");
  const auto with_lbfgs = [](Training& training) {
    training.make_optimizer = [](auto parameters) {
      return std::make_unique<torch::optim::LBFGS>(parameters);
    };
  };
  expect_refused(
      [&](Training& training) {
        training.config.dtype = "float32";
        training.config.precision = "fp16";
        with_lbfgs(training);
      },
      "and the optimizer LBFGS, which evaluates the loss itself, cannot: set precision to bf16 or fp32");
  expect_refused(
      [&](Training& training) {
        training.config.cuda_graph = true;
        with_lbfgs(training);
      },
      "cuda_graph cannot record this optimizer: its class is LBFGS");
  expect_refused(
      [](Training& training) {
        training.config.dtype = "float32";
        training.config.cuda_graph = true;
      },
      "this rank trains on cpu: set compute_setup to gpu, or leave out cuda_graph");
  expect_refused(
      [](Training& training) {
        training.config.zero.stage = 1;
        training.prepare = [](Trainer& trainer) {
          trainer.set_optimize_step([](const StepContext& context) { return context.closure(); });
        };
      },
      "the program's own step (set_optimize_step) works on whole gradients, which no rank has with "
      "zero_stage "
      "1: set it to 0");
  expect_refused(
      [](Training& training) {
        training.config.ema_decay = 0.9;
        training.fit = [](Trainer& trainer, const Loader& data) {
          const auto search = make_random_search(get_parameters(*trainer.model().module()));
          const auto scope = trainer.disable_grad_opt(*search);
          return trainer.fit(data);
        };
      },
      "ema_decay averages what gradients make of the weights, and a search has none: set it to 0");
  expect_refused(
      [](Training& training) {
        training.loss = [](const Batch& batch, const Model& model) {
          return LossResult(mse(batch, model), {{"residuals", batch.data()}});
        };
      },
      "the metric 'residuals' of a batch must be one number");
}

}  // namespace
}  // namespace lockstep
