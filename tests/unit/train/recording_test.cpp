#include "train/recorded_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace lockstep::train {
namespace {

struct Recording {
  TrainConfig config;
  RecordingFacts facts;
};

struct RecordingCase {
  const char* name;
  std::function<void(Recording&)> change;
  const char* text;  // "": it is recorded
};

class RecordingTest : public testing::TestWithParam<RecordingCase> {};

TEST_P(RecordingTest, NamesTheOneThingAndWhatChangesIt) {
  Recording recording;
  recording.config.cuda_graph = true;
  recording.facts.device = c10::Device(c10::DeviceType::CUDA, 0);
  recording.facts.backend = "nccl";
  GetParam().change(recording);
  EXPECT_EQ(objection_to_recording(recording.config, recording.facts), GetParam().text);
}

INSTANTIATE_TEST_SUITE_P(
    Conditions, RecordingTest,
    testing::Values(
        RecordingCase{"Recorded", [](Recording&) {}, ""},
        RecordingCase{"RecordedByTwo", [](Recording& r) { r.facts.num_ranks = 2; }, ""},
        RecordingCase{"OneRankNeedsNoNccl", [](Recording& r) { r.facts.backend = "none"; }, ""},
        RecordingCase{"EmaInBf16",
                      [](Recording& r) {
                        r.config.precision = "bf16";
                        r.config.ema_decay = 0.9;
                      },
                      ""},
        RecordingCase{"Optimizer", [](Recording& r) { r.facts.optimizer_objection = "its class is Lion"; },
                      "cuda_graph cannot record this optimizer: its class is Lion"},
        RecordingCase{
            "OwnStep", [](Recording& r) { r.facts.has_own_step = true; },
            "cuda_graph cannot record the program's own step (set_optimize_step): leave out cuda_graph"},
        RecordingCase{"Sharded", [](Recording& r) { r.config.zero.stage = 2; },
                      "cuda_graph cannot record a sharded step: zero_stage is 2, set it to 0"},
        RecordingCase{
            "NotFused", [](Recording& r) { r.config.fused_optimizer = false; },
            "cuda_graph records the fused optimizer only: fused_optimizer is false, set it to true"},
        RecordingCase{"EmaInFp16",
                      [](Recording& r) {
                        r.config.precision = "fp16";
                        r.config.ema_decay = 0.9;
                      },
                      "cuda_graph cannot record ema_decay with precision fp16, where the host must know "
                      "whether there was a step: set precision to bf16, or ema_decay to 0"},
        RecordingCase{"Cpu", [](Recording& r) { r.facts.device = c10::Device(c10::DeviceType::CPU); },
                      "cuda_graph records the kernels of a GPU, and this rank trains on cpu: set "
                      "compute_setup to gpu, or leave out cuda_graph"},
        RecordingCase{"Gloo",
                      [](Recording& r) {
                        r.facts.num_ranks = 4;
                        r.facts.backend = "gloo";
                      },
                      "cuda_graph records collectives of nccl only, and the backend of 4 ranks is gloo: set "
                      "backend to nccl"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::train
