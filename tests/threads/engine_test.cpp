// Training by a DeepSpeed configuration, with ranks as threads: against plain loops.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/deepspeed.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <torch/torch.h>

#include <limits>

#include "support/block_net.h"
#include "support/config_error.h"
#include "support/group_case.h"
#include "support/overflow_schedule.h"
#include "support/parameter_copies.h"
#include "train/deepspeed/make_optimizer.h"
#include "train/deepspeed/make_schedule.h"
#include "train/deepspeed/sharded_options.h"

namespace lockstep {
namespace {

using test::batch_of;
using test::BlockNet;
using test::copies;
using test::error_of;
using test::expect_same;
using test::formula;
using test::parameters_of;
using test::run_group;
using test::same_bits;
using test::StageCase;
using testing::HasSubstr;

constexpr int kBatch = 4;

class EngineTest : public testing::TestWithParam<StageCase> {
 protected:
  // Small buckets and few small parameters, so that all paths are taken; `more` is the rest
  // of the file.
  DeepSpeedConfig config(const std::string& more) const {
    return DeepSpeedConfig::from_text(
        "{train_micro_batch_size_per_gpu: 4, zero_optimization: {stage: " + std::to_string(GetParam().stage) +
            ", reduce_bucket_size: 75, stage3_param_persistence_threshold: 9}, " + more + "}",
        "ds.json");
  }
  void run(const std::function<void(Communicator&)>& body) { run_group(GetParam().group, body); }
};

TEST_P(EngineTest, Fp32IsDataParallelBitForBit) {
  for (const char* optimizer : {R"({type: "SGD", params: {lr: 0.1, momentum: 0.9, weight_decay: 0.01}})",
                                R"({type: "Adam", params: {lr: 0.01, weight_decay: 0.01}})",
                                R"({type: "Adagrad", params: {lr: 0.05}})", R"({type: "Lion"})"}) {
    run([&](Communicator& group) {
      const DeepSpeedConfig file =
          config(std::string("gradient_clipping: 0, prescale_gradients: true, optimizer: ") + optimizer);
      BlockNet plain;
      DataParallel model(plain, group);
      const auto plain_optimizer = deepspeed::make_optimizer(file.optimizer, plain->parameters());
      BlockNet net;
      auto engine = initialize(net, file, group);
      for (int step = 0; step < 5; ++step) {
        model.zero_grad();
        model.forward(batch_of(group.rank(), step)).square().mean().backward();
        plain_optimizer->step();
        engine.backward(engine.forward(batch_of(group.rank(), step)).square().mean());
        engine.step();
        EXPECT_TRUE(engine.was_step_applied());
      }
      expect_same(parameters_of(engine), copies(plain->parameters()));
      EXPECT_EQ(engine.global_steps(), 5);
      EXPECT_EQ(engine.global_samples(), 5 * kBatch * group.size());
      EXPECT_EQ(engine.skipped_steps(), 0);
    });
  }
}

// 16 bit with masters, a static loss scale and clipping, against ShardedModel by hand.
TEST_P(EngineTest, ShortDtypesAreShardedModelBitForBit) {
  struct Precision {
    const char* file;
    at::ScalarType dtype;
    double scale;
  };
  for (const Precision& precision : {Precision{"bf16: {enabled: true}", at::kBFloat16, 1},
                                     Precision{"fp16: {enabled: true, loss_scale: 128}", at::kHalf, 128}}) {
    run([&](Communicator& group) {
      const DeepSpeedConfig file =
          config(std::string(precision.file) +
                 R"(, gradient_clipping: 0.05, optimizer: {type: "AdamW", params: {lr: 0.01}})");
      BlockNet plain;
      const auto optimizer = deepspeed::make_optimizer(file.optimizer, plain->parameters());
      plain->to(precision.dtype);
      ShardedModel model(plain.ptr(), *optimizer, group, deepspeed::sharded_options(file));
      BlockNet net;
      auto engine = initialize(net, file, group);
      EXPECT_EQ(engine.loss_scale(), precision.scale);
      for (int step = 0; step < 4; ++step) {
        const at::Tensor x = batch_of(group.rank(), step).to(precision.dtype);
        model.zero_grad();
        model.prepare_forward();
        (plain->forward(x).square().mean().to(at::kFloat) * precision.scale).backward();
        const double norm = model.grad_norm().item<double>();
        const double excess = std::max(1.0, (norm / precision.scale + 1e-6) / 0.05);
        model.step(at::full({}, 1.0 / (precision.scale * excess)));

        engine.backward(engine.forward(x).square().mean());
        engine.step();
        EXPECT_EQ(engine.get_global_grad_norm().value(), norm / precision.scale);
        EXPECT_GT(engine.get_global_grad_norm().value(), 0.05) << "it must be clipped to show anything";
      }
      std::vector<at::Tensor> expected;
      {
        const auto scope = model.gather_parameters();
        expected = copies(plain->parameters());
      }
      EXPECT_EQ(expected[0].scalar_type(), precision.dtype);
      expect_same(parameters_of(engine), expected);
    });
  }
}

TEST_P(EngineTest, OverflowsSkipTheStepOnAllRanks) {
  run([&](Communicator& group) {
    BlockNet net;
    auto engine = initialize(
        net, config(test::kOverflowSchedule + R"(, optimizer: {type: "SGD", params: {lr: 0.1}})"), group);
    test::expect_overflow_schedule(engine,
                                   [&](int step) { return batch_of(group.rank(), step).to(at::kHalf); });
  });
}

TEST_P(EngineTest, AnOverflowAtTheLeastScaleIsAnErrorOnAllRanks) {
  run([&](Communicator& group) {
    BlockNet net;
    auto engine = initialize(net, config(R"(fp16: {enabled: true, initial_scale_power: 0, hysteresis: 1},
                                       optimizer: {type: "SGD"})"),
                             group);
    const at::Tensor x = batch_of(group.rank(), 0).to(at::kHalf) * std::numeric_limits<double>::infinity();
    engine.backward(engine.forward(x).square().mean());
    EXPECT_THAT(error_of([&] { engine.step(); }), HasSubstr("minimum"));
  });
}

TEST_P(EngineTest, AccumulatesMicroBatches) {
  run([&](Communicator& group) {
    const DeepSpeedConfig file = config(
        R"(gradient_accumulation_steps: 3, gradient_clipping: 0, prescale_gradients: true,
           optimizer: {type: "SGD", params: {lr: 0.1, momentum: 0.9}},
           scheduler: {type: "WarmupLR", params: {warmup_num_steps: 4, warmup_type: "linear", warmup_min_lr: 0.1, warmup_max_lr: 0.5}})");
    BlockNet plain;
    DataParallel model(plain, group);
    torch::optim::SGD optimizer(plain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    BlockNet net;
    auto engine = initialize(net, file, group);
    EXPECT_EQ(engine.batch().train_batch_size, 3 * kBatch * group.size());
    const LearningRateSchedule schedule = deepspeed::make_schedule(file.scheduler).value();
    for (int micro = 0; micro < 9; ++micro) {
      const bool is_last = micro % 3 == 2;
      const at::Tensor x = batch_of(group.rank(), micro);
      {
        std::optional<GradientSync::NoSync> scope;
        if (!is_last) scope.emplace(model.no_sync());
        (model.forward(x).square().mean() / 3.0).backward();
      }
      if (is_last) {
        optimizer.param_groups()[0].options().set_lr(engine.get_lr()[0]);
        optimizer.step();
        model.zero_grad();
      }
      EXPECT_EQ(engine.is_gradient_accumulation_boundary(), is_last);
      engine.backward(engine(x).square().mean());
      engine.step();
      EXPECT_EQ(engine.was_step_applied(), is_last);
      EXPECT_EQ(engine.micro_steps(), micro + 1);
      EXPECT_EQ(engine.global_steps(), (micro + 1) / 3);
      EXPECT_EQ(engine.get_lr()[0], schedule.at((micro + 1) / 3, 0.1));
    }
    const auto actual = parameters_of(engine);
    if (GetParam().stage < 2) {
      expect_same(actual, copies(plain->parameters()));
    } else {  // parts are reduced each time, and rounded in another order
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_TRUE(torch::allclose(actual[i], plain->parameters()[i], 1e-5, 1e-7));
      }
    }
  });
}

TEST_P(EngineTest, TheProgramMayDecideWhenAStepIsDue) {
  run([&](Communicator& group) {
    BlockNet net;
    auto engine =
        initialize(net, config(R"(managed_gradient_accumulation: false, optimizer: {type: "SGD"})"), group);
    for (int step = 0; step < 2; ++step) {
      {
        const auto scope = engine.no_sync();
        engine.backward(engine.forward(batch_of(group.rank(), step)).square().mean());
        EXPECT_THAT(error_of([&] { engine.step(); }), HasSubstr("inside no_sync()"));
      }
      EXPECT_TRUE(engine.is_gradient_accumulation_boundary());
      engine.backward(engine.forward(batch_of(group.rank(), step)).square().mean());
      engine.step();
      EXPECT_TRUE(engine.was_step_applied());
    }
    EXPECT_EQ(engine.global_steps(), 2);
  });
}

// Gradients that only this rank has must not become a step: it is refused, and they are kept for
// the backward that reduces them.
TEST_P(EngineTest, AStepByGradientsThatAreNotReducedIsRefused) {
  run([&](Communicator& group) {
    for (const char* managed : {"true", "false"}) {
      const DeepSpeedConfig file = config(std::string("managed_gradient_accumulation: ") + managed +
                                          R"(, optimizer: {type: "SGD", params: {lr: 0.1}})");
      const auto trained = [&](bool steps_too_early) {
        BlockNet net;
        auto engine = initialize(net, file, group);
        const auto backward = [&](int step) {
          engine.backward(engine.forward(batch_of(group.rank(), step)).square().mean());
        };
        {
          const auto scope = engine.no_sync();
          backward(0);
        }
        if (steps_too_early) {
          EXPECT_THAT(error_of([&] { engine.step(); }),
                      HasSubstr("the last backward() before it was inside no_sync()"));
        }
        backward(1);
        engine.step();
        EXPECT_EQ(engine.global_steps(), 1);
        return parameters_of(engine);
      };
      expect_same(trained(true), trained(false));
    }
  });
}

TEST_P(EngineTest, ABatchThatIsNotTheConfigurationsIsCaughtAtTheFirstForward) {
  run([&](Communicator& group) {
    BlockNet net;
    auto engine = initialize(net, config(R"(optimizer: {type: "SGD"})"), group);
    const at::Tensor wrong = formula({5, 3}, 1);
    {
      const torch::NoGradGuard evaluation;
      EXPECT_EQ(engine.forward(wrong).size(0), 5);
    }
    EXPECT_THAT(error_of([&] { engine.forward(wrong); }),
                HasSubstr("ds.json:1:2: the first forward has a batch of 5, and the configuration says 4"));
    engine.backward(engine.forward(batch_of(group.rank(), 0)).square().mean());
    engine.step();
    engine.forward(wrong);  // a short last batch of an epoch
  });
}

TEST_P(EngineTest, AnOptimizerOfTheProgram) {
  run([&](Communicator& group) {
    BlockNet net;
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto engine = initialize(net, config("bf16: {enabled: true}"), group, &optimizer);
    const auto before = parameters_of(engine);
    engine.backward(engine.forward(batch_of(group.rank(), 0).to(at::kBFloat16)).square().mean());
    engine.step();
    EXPECT_FALSE(same_bits(before[0], parameters_of(engine)[0]));
    EXPECT_EQ(&engine.optimizer(), &optimizer);
    if (GetParam().stage > 0) {
      EXPECT_THAT(error_of([&] {
                    initialize(net, config("zero_allow_untested_optimizer: false"), group, &optimizer);
                  }),
                  HasSubstr("does not know the program's optimizer"));
    }
  });
}

// The loop of LUMI's page: optimizer.zero_grad() before each forward. step() has cleared the gradients
// already, so it changes nothing at any stage.
TEST_P(EngineTest, ZeroGradBeforeEachForwardChangesNothing) {
  run([&](Communicator& group) {
    const DeepSpeedConfig file = config(R"(optimizer: {type: "Adam", params: {lr: 0.01}})");
    BlockNet plain;
    auto engine = initialize(plain, file, group);
    BlockNet net;
    auto cleared = initialize(net, file, group);
    BlockNet other;
    auto by_engine = initialize(other, file, group);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = batch_of(group.rank(), step);
      engine.backward(engine.forward(x).square().mean());
      engine.step();
      cleared.optimizer().zero_grad();
      cleared.backward(cleared.forward(x).square().mean());
      cleared.step();
      by_engine.zero_grad();
      by_engine.backward(by_engine.forward(x).square().mean());
      by_engine.step();
    }
    expect_same(parameters_of(cleared), parameters_of(engine));
    expect_same(parameters_of(by_engine), parameters_of(engine));
  });
}

// A program that starts a step again clears what the first backward left.
TEST_P(EngineTest, ZeroGradDropsAnUnfinishedStep) {
  run([&](Communicator& group) {
    const DeepSpeedConfig file =
        config(R"(gradient_accumulation_steps: 2, optimizer: {type: "SGD", params: {lr: 0.1}})");
    BlockNet plain;
    auto engine = initialize(plain, file, group);
    BlockNet net;
    auto cleared = initialize(net, file, group);
    cleared.backward(cleared.forward(batch_of(group.rank(), 7)).square().mean());
    cleared.zero_grad();
    EXPECT_THAT(error_of([&] { cleared.step(); }), HasSubstr("without a backward()"));
    for (int micro = 0; micro < 2; ++micro) {
      const at::Tensor x = batch_of(group.rank(), micro);
      engine.backward(engine.forward(x).square().mean());
      engine.step();
      cleared.backward(cleared.forward(x).square().mean());
      cleared.step();
    }
    EXPECT_TRUE(cleared.was_step_applied());
    expect_same(parameters_of(cleared), parameters_of(engine));
  });
}

TEST_P(EngineTest, LoaderFeedsThisRanksShareInMicroBatches) {
  run([&](Communicator& group) {
    BlockNet net;
    const int64_t samples = kBatch * group.size() * 2 + 1;
    const TensorDataset data({torch::arange(samples)});
    const auto drops =
        initialize(net, config(R"(optimizer: {type: "SGD"}, dataloader_drop_last: true)"), group);
    std::vector<int64_t> sizes;
    double sum = 0;
    Loader loader = drops.loader(data, {.shuffle = false});
    for (const Batch& batch : loader.epoch(0)) {
      sizes.push_back(batch.size());
      sum += batch.data().sum().item<double>();
    }
    EXPECT_THAT(sizes, testing::ElementsAre(kBatch, kBatch));
    at::Tensor total = torch::tensor({sum});
    group.all_reduce(total).wait();
    const double used = static_cast<double>(samples - 1);
    EXPECT_EQ(total.item<double>(), used * (used - 1) / 2) << "each sample but the last is on one rank";
    BlockNet other;
    const auto keeps = initialize(other, config(R"(optimizer: {type: "SGD"})"), group);
    EXPECT_EQ(keeps.loader(data).num_batches(), 3);
    EXPECT_TRUE(keeps.loader(data).options().shuffle);
  });
}

TEST_P(EngineTest, HandsOutItsSchedulerAndItsPlace) {
  run([&](Communicator& group) {
    BlockNet net;
    auto engine = initialize(
        net,
        config(R"(optimizer: {type: "SGD"}, scheduler: {type: "WarmupLR", params: {warmup_num_steps: 10}})"),
        group);
    ASSERT_NE(engine.scheduler(), nullptr);
    const int64_t first = engine.scheduler()->step();
    engine.backward(engine.forward(batch_of(group.rank(), 0)).square().mean());
    engine.step();
    EXPECT_EQ(engine.scheduler()->step(), first + 1);
    EXPECT_EQ(engine.device(), c10::Device(c10::kCPU));
    EXPECT_EQ(engine.local_rank(), -1) << "a communicator does not know it";
    BlockNet other;
    EXPECT_EQ(initialize(other, config(R"(optimizer: {type: "SGD"})"), group).scheduler(), nullptr);
    RankMap map;
    map.rank = group.rank();
    map.world_size = group.size();
    map.local_rank = 3 + group.rank();  // not the rank
    const World world(map, group, c10::kCPU);
    BlockNet placed;
    EXPECT_EQ(initialize(placed, config(R"(optimizer: {type: "SGD"})"), world).local_rank(), map.local_rank);
  });
}

TEST_P(EngineTest, MisuseIsExplained) {
  run([&](Communicator& group) {
    BlockNet net;
    torch::optim::SGD own(net->parameters(), 0.1);
    EXPECT_THAT(error_of([&] { initialize(net, config("bf16: {enabled: false}"), group); }),
                HasSubstr("the configuration has no optimizer"));
    EXPECT_THAT(error_of([&] { initialize(net, config(R"(optimizer: {type: "SGD"})"), group, &own); }),
                HasSubstr("brings its own optimizer"));
    auto engine = initialize(net, config(R"(optimizer: {type: "SGD"})"), group);
    EXPECT_THAT(error_of([&] { engine.step(); }), HasSubstr("without a backward()"));
    EXPECT_THAT(error_of([&] { engine.backward(torch::ones({2})); }), HasSubstr("one number: it has 2"));
    EXPECT_THAT(error_of([&] { engine.backward(torch::ones({})); }), HasSubstr("does not depend on any"));
  });
}

std::vector<StageCase> all_cases() {
  std::vector<StageCase> cases;
  for (const std::vector<int>& hosts : {std::vector<int>{0}, {0, 0}, {0, 0, 0}}) {
    for (int stage = 0; stage <= 3; ++stage) cases.push_back({{"shm", hosts}, stage});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Stages, EngineTest, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name(); });

TEST(EngineOptimizersTest, LambTrainsWholeAtStage0AndIsRefusedAbove) {
  run_group({"shm", {0, 0}}, [](Communicator& group) {
    const auto file = [](const std::string& more) {
      return DeepSpeedConfig::from_text(
          R"({train_micro_batch_size_per_gpu: 4, optimizer: {type: "Lamb", params: {lr: 0.01}}, )" + more +
              "}",
          "ds.json");
    };
    BlockNet net;
    auto engine = initialize(net, file("gradient_clipping: 0.1"), group);
    double first = 0;
    double last = 0;
    for (int step = 0; step < 10; ++step) {
      const at::Tensor loss = engine.forward(batch_of(group.rank(), 0)).square().mean();
      last = loss.item<double>();
      if (step == 0) first = last;
      engine.backward(loss);
      engine.step();
    }
    EXPECT_LT(last, 0.9 * first);
    EXPECT_THAT(error_of([&] { initialize(net, file("bf16: {enabled: true}"), group); }),
                HasSubstr("bf16.enabled: Lamb"));
    EXPECT_THAT(error_of([&] { file("zero_optimization: {stage: 1}"); }),
                HasSubstr("Lamb cannot be sharded"));
  });
}

TEST(EngineOptimizersTest, LbfgsIsRefused) {
  BlockNet net;
  const std::string batch = "train_batch_size: 4";
  EXPECT_THAT(error_of([&] {
                initialize(
                    net,
                    DeepSpeedConfig::from_text("{" + batch + R"(, optimizer: {type: "LBFGS"}})", "ds.json"),
                    Communicator());
              }),
              HasSubstr("LBFGS evaluates the loss itself"));
}

}  // namespace
}  // namespace lockstep
