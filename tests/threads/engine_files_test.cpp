// Configuration files of many shapes, each of which trains.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/deepspeed.h>
#include <torch/torch.h>

#include <fstream>
#include <sstream>

#include "support/block_net.h"
#include "support/deepspeed_files.h"
#include "support/group_case.h"
#include "support/temporary_folder.h"
#include "unit/track/file_size_limit.h"

namespace lockstep {
namespace {

using test::BlockNet;
using test::formula;
using test::run_group;
using test::same_bits;
using testing::HasSubstr;

// The loss of one fixed batch, before and after some steps on it.
struct LossChange {
  double first = 0;
  double last = 0;
};

LossChange losses_of(const DeepSpeedConfig& file, Communicator& group, int64_t batch, int micro_batches) {
  BlockNet net;
  auto engine = initialize(net, file, group);
  const bool converts = file.dtype() == DeepSpeedConfig::Dtype::kBf16;
  LossChange result;
  for (int i = 0; i < micro_batches; ++i) {
    const at::Tensor x = formula({batch, 3}, group.rank());
    const at::Tensor loss = engine.forward(converts ? x.to(at::kBFloat16) : x).to(at::kFloat).square().mean();
    if (i == 0) result.first = loss.item<double>();
    result.last = loss.item<double>();
    engine.backward(loss);
    engine.step();
  }
  EXPECT_EQ(engine.global_steps(), micro_batches / engine.batch().accumulation_steps);
  // What a rank alone would not have: the same weights as the others.
  const auto scope = engine.gather_parameters();
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& parameter : net->parameters()) sum += parameter.detach().to(at::kDouble).sum();
  at::Tensor all = at::empty({group.size()}, at::kDouble);
  group.all_gather(all, sum.reshape({1})).wait();
  EXPECT_TRUE(at::isfinite(all).all().item<bool>());
  EXPECT_TRUE(all.eq(all[0]).all().item<bool>());
  return result;
}

TEST(EngineFilesTest, EachTrains) {
  for (const test::DeepSpeedFile& file : test::deepspeed_files()) {
    run_group({"shm", {0, 0}}, [&](Communicator& group) {
      SCOPED_TRACE(file.name);
      const auto config = DeepSpeedConfig::from_text(file.text, std::string(file.name) + ".json");
      const LossChange training = losses_of(config, group, 4, 16);
      EXPECT_LT(training.last, 0.97 * training.first);
    });
  }
}

// A batch of 32 over all ranks.
TEST(EngineFilesTest, LumisFileTrains) {
  run_group({"shm", {0, 0}}, [&](Communicator& group) {
    const auto config = DeepSpeedConfig::from_text(test::lumis_repository_file(), "ds_config.json");
    const LossChange training = losses_of(config, group, 16, 16);
    EXPECT_LT(training.last, training.first);
  });
}

TEST(EngineFilesTest, StateInFilesTrainsAsInMemory) {
  const test::TemporaryFolder folder;
  run_group({"shm", {0, 0}}, [&](Communicator& group) {
    const auto with = [&](const std::string& offload) {
      return losses_of(DeepSpeedConfig::from_text(
                           R"({"train_batch_size": 8, "zero_optimization": {"stage": 3,
                       "stage3_param_persistence_threshold": 10)" +
                               offload + R"(}, "optimizer": {"type": "Adam", "params": {"lr": 0.01}}})",
                           "ds.json"),
                       group, 4, 8);
    };
    const LossChange plain = with("");
    const LossChange offloaded =
        with(R"(, "offload_optimizer": {"device": "nvme", "pipeline_read": true, "nvme_path": ")" +
             folder.path().string() + "\"}");
    EXPECT_EQ(offloaded.first, plain.first);
    EXPECT_NEAR(offloaded.last, plain.last, 1e-6);
  });
}

TEST(EngineFilesTest, MonitorsWriteOnRank0) {
  const test::TemporaryFolder folder;
  run_group({"shm", {0, 0}}, [&](Communicator& group) {
    const std::string path = folder.path().string();
    losses_of(DeepSpeedConfig::from_text(R"({"train_batch_size": 8, "wall_clock_breakdown": true,
              "fp16": {"enabled": true, "auto_cast": true, "initial_scale_power": 4},
              "optimizer": {"type": "Adam"},
              "csv_monitor": {"enabled": true, "output_path": ")" +
                                             path + R"(", "job_name": "csv"},
              "tensorboard": {"enabled": true, "output_path": ")" +
                                             path + R"(", "job_name": "events"}})",
                                         "ds.json"),
              group, 4, 3);
  });
  std::stringstream text;
  text << std::ifstream(folder.path() / "csv" / "metrics.csv").rdbuf();
  for (const char* name : {"Train/Samples/train_loss", "Train/Samples/lr", "Train/Samples/loss_scale",
                           "Train/Samples/grad_norm", "Train/Samples/elapsed_time_ms_backward_allreduce"}) {
    EXPECT_THAT(text.str(), HasSubstr(name));
  }
  EXPECT_THAT(text.str(), HasSubstr("\n8,")) << "by samples of all ranks";
  EXPECT_THAT(text.str(), HasSubstr("\n24,"));
  EXPECT_FALSE(std::filesystem::is_empty(folder.path() / "events"));
}

TEST(EngineFilesTest, AMonitorThatCannotWriteEndsNothing) {
  const test::TemporaryFolder folder;
  run_group({"gloo", {0}}, [&](Communicator& group) {
    const auto config = DeepSpeedConfig::from_text(
        R"({"train_batch_size": 4, "optimizer": {"type": "Adam"},
            "csv_monitor": {"enabled": true, "job_name": "csv", "output_path": ")" +
            folder.path().string() + R"("}})",
        "ds.json");
    const track::FileSizeLimit full_disk(16);
    losses_of(config, group, 4, 3);
  });
  EXPECT_LE(std::filesystem::file_size(folder.path() / "csv" / "metrics.csv"), 16u)
      << "it could write after all";
}

}  // namespace
}  // namespace lockstep
