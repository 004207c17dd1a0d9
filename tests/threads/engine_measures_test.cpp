// What a DeepSpeed configuration wants measured, of an engine on two ranks.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/deepspeed.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include "support/block_net.h"
#include "support/config_error.h"
#include "support/group_case.h"

namespace lockstep {
namespace {

using test::BlockNet;
using test::error_of;
using test::formula;
using test::run_group;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

struct Output {
  std::string log;
  std::string out;
};

// Three steps of two ranks; `also` runs at their end.
template <typename Also>
Output output_with(const std::string& keys, Also also) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  run_group({"shm", {0, 0}}, [&](Communicator& group) {
    BlockNet net;
    auto engine = initialize(net,
                             DeepSpeedConfig::from_text("{train_micro_batch_size_per_gpu: 4, optimizer: "
                                                        "{type: \"SGD\", params: {lr: 0.1}}, " +
                                                            keys + "}",
                                                        "ds.json"),
                             group);
    for (int step = 0; step < 3; ++step) {
      engine.backward(engine.forward(formula({4, 3}, step + group.rank())).square().mean());
      engine.step();
    }
    also(engine);
  });
  return {testing::internal::GetCapturedStderr(), testing::internal::GetCapturedStdout()};
}

Output output_with(const std::string& keys) {
  return output_with(keys, [](EngineCore&) {});
}

TEST(EngineMeasuresTest, AutoIsSaidAsWhatItBecame) {
  const std::string log =
      output_with(
          "train_batch_size: \"auto\", gradient_accumulation_steps: \"auto\", gradient_clipping: \"auto\", "
          "zero_optimization: {stage: 2, reduce_bucket_size: \"auto\"}")
          .log;
  for (const char* line :
       {"train_batch_size: \"auto\" is 8\n", "gradient_accumulation_steps: \"auto\" is 1\n",
        "gradient_clipping: \"auto\" is 1", "zero_optimization.reduce_bucket_size: \"auto\" is 25.0 MiB\n"}) {
    EXPECT_THAT(log, HasSubstr(line));
  }
}

TEST(EngineMeasuresTest, CollectivesAreSummedUpAtTheEnd) {
  const std::string log = output_with("comms_logger: {enabled: true}").log;
  // All of the model's 882 gradients, padded, are one bucket.
  EXPECT_THAT(log,
              ContainsRegex("comm op: all_reduce \\| msg size: 3\\.5 KiB \\| count: 3 \\| total \\(ms\\): "
                            "[0-9.]+ \\| avg \\(ms\\): [0-9.]+ \\| algbw \\(Gbps\\): [0-9.]+ \\| busbw"));
  EXPECT_THAT(log, Not(HasSubstr("time (ms): ")));
  EXPECT_THAT(output_with("comms_logger: {enabled: false}").log, Not(HasSubstr("comm op")));
}

TEST(EngineMeasuresTest, EachCallHasALineWhereAskedAndItsPhase) {
  const std::string log =
      output_with("zero_optimization: {stage: 2}, comms_logger: {enabled: true, verbose: true, debug: true}")
          .log;
  EXPECT_THAT(
      log, ContainsRegex("comm op: reduce_scatter \\[backward\\] \\| time \\(ms\\): [0-9.]+ \\| msg size: "));
  EXPECT_THAT(log, HasSubstr("comm op: all_gather [step] | "));
}

TEST(EngineMeasuresTest, OnlyNamedCollectivesAreMeasured) {
  const std::string log = output_with(
                              "zero_optimization: {stage: 2}, comms_logger: {enabled: true, prof_all: false, "
                              "prof_ops: [\"all_gather_into_tensor\"]}")
                              .log;
  EXPECT_THAT(log, HasSubstr("comm op: all_gather"));
  EXPECT_THAT(log, Not(HasSubstr("reduce_scatter")));
}

TEST(EngineMeasuresTest, StragglersAreWhatARankWaitsForTheLast) {
  const std::string log = output_with("comms_logger: {enabled: true}", [](EngineCore& engine) {
                            engine.log_comms_summary(/*show_straggler=*/true);
                          }).log;
  EXPECT_THAT(log, ContainsRegex("comm op: all_reduce .*count: 3 \\| total comm \\(ms\\): [0-9.]+ \\| total "
                                 "straggler \\(ms\\): [0-9.]+ \\|"));
  output_with("steps_per_print: 0", [](EngineCore& engine) {
    EXPECT_THAT(error_of([&] { engine.log_comms_summary(); }), HasSubstr("set comms_logger.enabled"));
  });
}

// Measured collectives are waited for one by one: the numbers stay.
TEST(EngineMeasuresTest, MeasuringChangesNoWeight) {
  std::vector<at::Tensor> weights[2];
  for (const bool measured : {false, true}) {
    output_with(fmt::format("zero_optimization: {{stage: 3}}, comms_logger: {{enabled: {}}}", measured),
                [&](EngineCore& engine) {
                  const auto scope = engine.gather_parameters();
                  if (engine.communicator().rank() != 0) return;
                  for (const auto& group : engine.optimizer().param_groups()) {
                    for (const at::Tensor& part : group.params())
                      weights[measured].push_back(part.detach().clone());
                  }
                });
  }
  ASSERT_EQ(weights[0].size(), weights[1].size());
  for (size_t i = 0; i < weights[0].size(); ++i) EXPECT_TRUE(test::same_bits(weights[0][i], weights[1][i]));
}

TEST(EngineMeasuresTest, TheProfileOfOneStepIsPrintedByRankZero) {
  for (const char* stage : {"0", "3"}) {
    const std::string out =
        output_with(fmt::format("zero_optimization: {{stage: {}}}, flops_profiler: {{enabled: true}}", stage))
            .out;
    EXPECT_THAT(out, HasSubstr("Step 1, counted from 0"));
    EXPECT_EQ(out.find("fwd MACs per rank"), out.rfind("fwd MACs per rank"));
    EXPECT_THAT(out, HasSubstr("3.23 KMACs"));
    EXPECT_THAT(out, ContainsRegex("params of model: +882"));
    EXPECT_THAT(out, ContainsRegex("\\(up\\) Linear: 216 = 24.49% Params, 768 MACs = 23.76% MACs"));
  }
}

}  // namespace
}  // namespace lockstep
