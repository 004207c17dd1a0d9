// Training of models with complex parameters, as perceptrain's dtypes complex64 and complex128.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/optim.h>

#include "support/config_error.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "train/gradient_statistics.h"

namespace lockstep {
namespace {

using test::Training;
using testing::HasSubstr;

// Its parameters are real until the trainer converts them, its output is real.
struct WavesImpl : torch::nn::Module {
  WavesImpl() {
    frequencies = register_parameter("frequencies", torch::zeros({1, 8}));
    amplitudes = register_parameter("amplitudes", torch::zeros({8, 1}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor phases = torch::matmul(x.to(frequencies.scalar_type()), frequencies);
    return torch::real(torch::matmul(torch::exp(phases * c10::complex<double>(0, 1)), amplitudes));
  }
  at::Tensor frequencies;
  at::Tensor amplitudes;
};

class TrainerComplexTest : public testing::Test {
 protected:
  TrainerComplexTest() {
    training_.config = test::quiet_config(folder_.path() / "run");
    training_.config.dtype = "complex128";
    training_.config.global_batch_size = 16;
    training_.make_model = [] { return torch::nn::Sequential(std::make_shared<WavesImpl>()); };
  }

  static Training::MakeOptimizer python_adam() {
    return
        [](const std::vector<at::Tensor>& parameters) { return make_python_adam(parameters, {.lr = 0.02}); };
  }

  Training::Outcome with(const std::function<void(Training&)>& change) {
    Training changed = training_;
    changed.config.log_folder = (folder_.path() / ("run-" + std::to_string(++runs_))).string();
    change(changed);
    return changed.run();
  }

  test::TemporaryFolder folder_;
  Training training_;
  int runs_ = 0;
};

TEST_F(TrainerComplexTest, TwoRanksTrainAsOne) {
  for (const bool adam : {false, true}) {
    const auto run = [&](int ranks) {
      return with([&](Training& training) {
        training.ranks = ranks;
        training.config.clip_grad_norm = 0.5;
        if (adam) training.make_optimizer = python_adam();
      });
    };
    const auto one = run(1);
    const auto two = run(2);
    test::expect_close_weights(one, two);
    for (const at::Tensor& weight : one.weights) {
      EXPECT_EQ(weight.scalar_type(), at::kComplexDouble);
      EXPECT_GT(torch::imag(weight).abs().max().item<double>(), 1e-3)
          << "the imaginary parts are trained too";
    }
  }
}

TEST_F(TrainerComplexTest, RealInputsGetTheRealDtype) {
  for (const auto& [dtype, expected] : {std::pair("complex64", at::kFloat), {"complex128", at::kDouble}}) {
    with([&, dtype = dtype, expected = expected](Training& training) {
      training.config.dtype = dtype;
      training.loss = [expected](const Batch& batch, const Model& model) {
        EXPECT_EQ(batch.data().scalar_type(), expected);
        EXPECT_EQ(model.module()->parameters()[0].scalar_type(), c10::toComplexType(expected));
        return mse(batch, model);
      };
    });
  }
}

// Complex parameters of the module itself are not made real, which would lose their imaginary parts.
TEST_F(TrainerComplexTest, ComplexParametersStayComplexWithARealDtype) {
  const auto outcome = with([](Training& training) {
    training.config.dtype = "float64";
    training.make_model = [] {
      auto waves = std::make_shared<WavesImpl>();
      waves->amplitudes.set_data(torch::zeros({8, 1}, at::kComplexDouble));
      return torch::nn::Sequential(waves);
    };
  });
  EXPECT_EQ(outcome.weights[0].scalar_type(), at::kDouble);
  EXPECT_EQ(outcome.weights[1].scalar_type(), at::kComplexDouble);
}

TEST_F(TrainerComplexTest, AResumedTrainingEndsWithTheSameBits) {
  for (const char* const dtype : {"complex64", "complex128"}) {
    const auto run = [&](int64_t epochs, const std::string& resume) {
      return with([&](Training& training) {
        training.ranks = 2;
        training.config.dtype = dtype;
        training.config.max_iter = epochs;
        training.config.checkpoint_every = 1;
        training.config.ema_decay = 0.9;
        training.config.resume = resume;
        training.make_optimizer = python_adam();
      });
    };
    const auto straight = run(6, "never");
    const auto first = run(3, "never");
    test::expect_equal_weights(run(6, first.result.run_folder), straight);
  }
}

TEST_F(TrainerComplexTest, GradientStatisticsAreOfBothParts) {
  with([](Training& training) {
    training.fit = [](Trainer& trainer, const Loader& data) {
      FitResult result = trainer.fit(data);
      const torch::nn::Module& module = *trainer.model().module();
      const auto statistics = train::gradient_statistics(module, 1, /*with_values=*/true);
      EXPECT_EQ(statistics.size(), 2U);
      for (size_t i = 0; i < statistics.size(); ++i) {
        const at::Tensor parts = torch::view_as_real(module.parameters()[i].grad().resolve_conj());
        EXPECT_EQ(statistics[i].values.numel(), parts.numel());
        EXPECT_EQ(statistics[i].greatest, parts.max().item<double>());
        EXPECT_EQ(statistics[i].least, parts.min().item<double>());
      }
      return result;
    };
  });
}

TEST_F(TrainerComplexTest, WhatIsForRealParametersIsRefused) {
  const auto error_of = [&](const std::function<void(Training&)>& change) {
    return test::error_of([&] { with(change); });
  };
  EXPECT_THAT(error_of([](Training& training) { training.config.zero.stage = 1; }),
              HasSubstr("zero_stage 1 does not shard complex parameters, and dtype is complex128"));
  EXPECT_THAT(error_of([](Training& training) { training.config.precision = "bf16"; }),
              HasSubstr("precision bf16 keeps parameters in float32, and dtype is complex128"));
  EXPECT_THAT(error_of([](Training& training) { training.config.clip_grad_value = 1; }),
              HasSubstr("clip_grad_value is for real gradients, and dtype is complex128"));
  EXPECT_THAT(
      error_of([](Training& training) {
        training.make_optimizer = [](const std::vector<at::Tensor>& parameters) {
          return std::make_unique<torch::optim::Adam>(parameters, 0.01);
        };
      }),
      HasSubstr("the optimizer Adam is for real parameters, use torch::optim::SGD, make_python_adam() "
                "or make_adadelta(): the parameter '0.amplitudes' is complex"));
  EXPECT_THAT(error_of([](Training& training) {
                training.loss = [](const Batch& batch, const Model& model) {
                  return LossResult(torch::complex(mse(batch, model), mse(batch, model)));
                };
              }),
              HasSubstr("the loss of a batch must be a real number, and it is complex"));
}

// With a real dtype the model is seen first by what would fail on it.
TEST_F(TrainerComplexTest, AComplexParameterOfTheModuleIsRefusedByName) {
  const auto error_with = [&](const std::function<void(TrainConfig&)>& change) {
    return test::error_of([&] {
      with([&](Training& training) {
        training.config.dtype = "float32";
        change(training.config);
        training.make_model = [] {
          auto waves = std::make_shared<WavesImpl>();
          waves->amplitudes.set_data(torch::zeros({8, 1}, at::kComplexFloat));
          return torch::nn::Sequential(waves);
        };
      });
    });
  };
  EXPECT_THAT(error_with([](TrainConfig& config) { config.zero.stage = 2; }),
              HasSubstr("zero_stage does not shard complex parameters, set it to 0: the parameter "
                        "'0.amplitudes' is complex"));
  EXPECT_THAT(error_with([](TrainConfig& config) { config.precision = "fp16"; }),
              HasSubstr("mixed precision is for real parameters"));
  EXPECT_THAT(error_with([](TrainConfig& config) { config.clip_grad_value = 1; }),
              HasSubstr("clip_grad_value is for real gradients, use clip_grad_norm"));
}

}  // namespace
}  // namespace lockstep
