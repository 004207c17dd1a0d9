// The lines that a configuration asks an engine for, word by word.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/deepspeed.h>
#include <torch/torch.h>

#include <limits>
#include <sstream>

#include "support/formula.h"
#include "support/group_case.h"

namespace lockstep {
namespace {

using test::formula;
using test::run_group;
using testing::AllOf;
using testing::ContainsRegex;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

struct Said {
  std::vector<std::string> lines;
  std::vector<std::string> norms;  // of each step, as lines have them

  std::vector<std::string> with(const std::string& text) const {
    std::vector<std::string> found;
    for (const std::string& line : lines) {
      if (line.find(text) != std::string::npos) found.push_back(line);
    }
    return found;
  }
};

// Four steps of two ranks with 1 MiB of float32 weights; the first input may be infinite.
Said said_with(const std::string& keys, bool overflows = false) {
  Said said;
  testing::internal::CaptureStderr();
  run_group({"shm", {0, 0}}, [&](Communicator& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(512, 512).bias(false));
    test::set_parameters(*net);
    auto engine = initialize(
        net, DeepSpeedConfig::from_text("{train_micro_batch_size_per_gpu: 4, " + keys + "}", "ds.json"),
        group);
    for (int step = 0; step < 4; ++step) {
      at::Tensor x = formula({4, 512}, 2 * step + group.rank());
      if (overflows && step == 0) x = x * std::numeric_limits<double>::infinity();
      const at::Tensor y = engine.forward(x.to(net->weight.scalar_type()));
      engine.backward(y.to(at::kFloat).square().mean());
      engine.step();
      const double norm = engine.get_global_grad_norm().value();  // on all ranks: it may wait for them
      if (group.rank() == 0) said.norms.push_back(fmt::format("{:.6g}", norm));
    }
  });
  std::istringstream stream(testing::internal::GetCapturedStderr());
  for (std::string line; std::getline(stream, line);) said.lines.push_back(line);
  return said;
}

constexpr const char* kAdam = R"(optimizer: {type: "Adam", params: {lr: 0.25}}, )";
constexpr const char* kTimes =
    "time \\(ms\\) \\| fwd: [0-9]+\\.[0-9][0-9] \\| bwd: [0-9]+\\.[0-9][0-9] \\| bwd_inner: "
    "[0-9]+\\.[0-9][0-9] \\| bwd_allreduce: [0-9]+\\.[0-9][0-9] \\| step: [0-9]+\\.[0-9][0-9]$";

TEST(EngineLines, OfProgressComeEverySoManyStepsFromOneRank) {
  const Said said = said_with(std::string(kAdam) + "zero_optimization: {stage: 2}, steps_per_print: 2");
  EXPECT_THAT(said.with("skipped="),
              ElementsAre(HasSubstr("step=2, skipped=0, lr=[0.25], norm=" + said.norms.at(1)),
                          HasSubstr("step=4, skipped=0, lr=[0.25], norm=" + said.norms.at(3))));
  EXPECT_THAT(said.with("SamplesPerSec"),
              ElementsAre(ContainsRegex("global_step=2, RunningAvgSamplesPerSec=[0-9.e+]+, "
                                        "CurrSamplesPerSec=[0-9.e+]+$"),
                          ContainsRegex("global_step=4, RunningAvgSamplesPerSec=[0-9.e+]+, "
                                        "CurrSamplesPerSec=[0-9.e+]+$")));
  EXPECT_THAT(said.with("loss_scale"), IsEmpty()) << "there is none";
  EXPECT_THAT(said.with("time (ms)"), IsEmpty());
  EXPECT_THAT(said.with("memory (MiB)"), IsEmpty());
}

TEST(EngineLines, OfTimesAndMemoryComeWithThem) {
  const Said said = said_with(std::string(kAdam) + "zero_optimization: {stage: 1}, steps_per_print: 2, " +
                              "wall_clock_breakdown: true, memory_breakdown: true");
  EXPECT_THAT(said.with("skipped="), SizeIs(2));
  EXPECT_THAT(said.with("time (ms)"), AllOf(SizeIs(2), Each(ContainsRegex(kTimes))));
  // Adam's two tensors are divided by the two ranks.
  EXPECT_THAT(said.with("memory (MiB)"),
              AllOf(SizeIs(2), Each(HasSubstr("memory (MiB) | parameters: 1.00 | gradients: 1.00 | master: "
                                              "0.00 | optimizer: 1.00 | buffers: 0.00"))));
}

TEST(EngineLines, OfTimesAndMemoryComeEachStepWithoutAPeriod) {
  const Said said = said_with(std::string(kAdam) +
                              "bf16: {enabled: true}, wall_clock_breakdown: true, "
                              "memory_breakdown: true, zero_optimization: {stage: 1}");
  EXPECT_THAT(said.with("skipped="), IsEmpty());
  EXPECT_THAT(said.with("time (ms)"), AllOf(SizeIs(4), Each(ContainsRegex(kTimes))));
  // Half a MiB of bfloat16; masters and both tensors of Adam in float32.
  EXPECT_THAT(said.with("memory (MiB)"),
              AllOf(SizeIs(4), Each(HasSubstr("memory (MiB) | parameters: 0.50 | gradients: 0.50 | master: "
                                              "0.50 | optimizer: 1.00 | buffers: 0.00"))));
}

TEST(EngineLines, OfProgressTellOfTheLossScale) {
  const Said said =
      said_with(std::string(kAdam) +
                    "steps_per_print: 1, timers: {throughput: {enabled: false}}, fp16: {enabled: true, "
                    "initial_scale_power: 4, hysteresis: 1, loss_scale_window: 100}",
                /*overflows=*/true);
  EXPECT_THAT(
      said.with("step="),
      ElementsAre(ContainsRegex("step=1, skipped=1, lr=\\[0.25\\], norm=[-a-z]+, loss_scale=8$"),
                  HasSubstr("step=2, skipped=1, lr=[0.25], norm=" + said.norms.at(1) + ", loss_scale=8"),
                  HasSubstr("step=3, skipped=1, lr=[0.25], norm=" + said.norms.at(2) + ", loss_scale=8"),
                  HasSubstr("step=4, skipped=1, lr=[0.25], norm=" + said.norms.at(3) + ", loss_scale=8")));
  EXPECT_THAT(said.with("SamplesPerSec"), IsEmpty());
}

TEST(EngineLines, WhoAsksForNoneGetsNone) { EXPECT_THAT(said_with(kAdam).lines, IsEmpty()); }

TEST(EngineLines, TheConfigurationIsSaidOnce) {
  const Said said = said_with(std::string(kAdam) + "dump_state: true, gradient_clipping: \"auto\"");
  EXPECT_THAT(said.with("configuration: {"), SizeIs(1));
  EXPECT_THAT(said.with("gradient_clipping: \"auto\" is"), SizeIs(1));
}

}  // namespace
}  // namespace lockstep
