// The buffers of an exported model that are not part of its state dict, in trainings of several ranks.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <lockstep/data_parallel.h>
#include <lockstep/exported_model.h>
#include <torch/torch.h>

#include "support/golden.h"
#include "support/group_case.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

std::filesystem::path counter_file() { return test::exported_file("counter"); }

TEST(ExportedTraining, RanksStartWithTheBuffersOfRankZero) {
  test::run_group(test::on_one_host(2), [](Communicator& group) {
    ExportedModel model(counter_file());
    model->named_buffers()["seen"].fill_(group.rank() + 3);
    const DataParallel replica(model.ptr(), group);
    EXPECT_EQ(model->named_buffers()["seen"].item<float>(), 3);
  });
}

// The buffer counts the steps, and each step depends on it.
TEST(ExportedTraining, AResumedTrainingHasTheBuffersOfItsCheckpoint) {
  const test::TemporaryFolder folder;
  for (const int stage : {0, 3}) {
    SCOPED_TRACE(stage);
    test::Training training;
    training.ranks = stage == 0 ? 1 : 2;
    training.config = test::quiet_config(folder.path() / fmt::format("whole-{}", stage));
    training.config.zero.stage = stage;
    training.config.checkpoint_every = 1;
    training.make_model = [] { return ExportedModel(counter_file())->as_model(); };
    const auto run_to = [&](int64_t epochs) {
      training.config.max_iter = epochs;
      return training.run();
    };
    const auto whole = run_to(4);
    training.config.log_folder = (folder.path() / fmt::format("parts-{}", stage)).string();
    run_to(2);
    const auto resumed = run_to(4);
    EXPECT_EQ(resumed.result.steps, whole.result.steps);
    test::expect_equal_weights(resumed, whole);
    EXPECT_EQ(whole.weights.back().item<double>(), static_cast<double>(whole.result.steps));
  }
}

}  // namespace
}  // namespace lockstep
