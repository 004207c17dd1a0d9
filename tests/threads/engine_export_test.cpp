// Whole weights of a divided 16-bit training: as they train, and as the masters behind them.

#include <gtest/gtest.h>
#include <lockstep/engine.h>
#include <torch/torch.h>

#include "interop/weights_file.h"
#include "support/block_net.h"
#include "support/group_case.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using test::BlockNet;
using test::formula;

class EngineExportTest : public testing::TestWithParam<int> {};

TEST_P(EngineExportTest, Float32IsTheMasterBehindTheWeight) {
  const test::TemporaryFolder folder;
  test::run_group({"shm", {0, 0}}, [&](Communicator& group) {
    BlockNet net;
    auto engine = initialize(net,
                             DeepSpeedConfig::from_text("{train_micro_batch_size_per_gpu: 4, bf16: {enabled: "
                                                        "true}, optimizer: {type: \"AdamW\", params: {lr: "
                                                        "0.01}}, zero_optimization: {stage: " +
                                                            std::to_string(GetParam()) +
                                                            ", stage3_param_persistence_threshold: 9}}",
                                                        "ds.json"),
                             group);
    for (int step = 0; step < 3; ++step) {
      engine.backward(engine.forward(formula({4, 3}, step).to(torch::kBFloat16)).square().mean());
      engine.step();
    }
    engine.save_checkpoint(folder.path());
  });
  const interop::WeightsSource source = interop::find_weights(folder.path());
  const NamedTensors saved = interop::read_tensors(source, interop::WhichTensors::kModel);
  const NamedTensors whole = interop::read_weights_as(source, torch::kFloat32);
  const NamedTensors half = interop::read_weights_as(source, torch::kFloat16);
  ASSERT_EQ(whole.size(), saved.size());
  ASSERT_EQ(saved.size(), BlockNet()->parameters().size());
  bool is_finer = false;
  for (size_t i = 0; i < saved.size(); ++i) {
    EXPECT_EQ(whole[i].first, saved[i].first);
    EXPECT_EQ(saved[i].second.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(whole[i].second.scalar_type(), torch::kFloat32);
    EXPECT_TRUE(torch::equal(whole[i].second.to(torch::kBFloat16), saved[i].second)) << saved[i].first;
    EXPECT_TRUE(torch::equal(half[i].second, saved[i].second.to(torch::kFloat16)));
    is_finer = is_finer || !torch::equal(whole[i].second, saved[i].second.to(torch::kFloat32));
  }
  EXPECT_TRUE(is_finer) << "these are the bfloat16 weights, not what is behind them";
}

INSTANTIATE_TEST_SUITE_P(Stages, EngineExportTest, testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace lockstep
