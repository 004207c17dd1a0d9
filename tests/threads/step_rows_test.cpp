// Rows of steps in the trackers: metrics that appear later.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

using test::Training;

class StepRowsTest : public testing::Test {
 protected:
  // The values of this name, by step.
  std::map<int64_t, double> values(const std::string& run, const std::string& name) const {
    std::map<int64_t, double> found;
    std::ifstream file(folder_.path() / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row.contains("step") && row.contains(name)) found[row["step"]] = row[name];
    }
    return found;
  }

  test::TemporaryFolder folder_;
};

// From step 3 on but for 5, with a step's number; on several ranks only the last one has it.
TEST_F(StepRowsTest, AMetricThatAppearsLaterHasRowsOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const std::string name = fmt::format("ranks-{}", ranks);
    Training one;
    one.config = test::quiet_config(folder_.path() / name);
    one.ranks = ranks;
    one.samples = int64_t{64} * ranks;
    one.config.max_iter = 2;
    one.config.log_every = 1;
    static thread_local double number = 0;  // of the step of this rank
    one.make_callbacks = [ranks]() -> std::vector<std::shared_ptr<Callback>> {
      return {std::make_shared<Callback>(
          CallbackOptions{.on = Stage::kTrainBatchStart}, [ranks](Trainer& trainer) {
            const bool has_it = trainer.world().rank() == ranks - 1;
            number = has_it ? static_cast<double>(trainer.result().step + 1) : 0;
          })};
    };
    one.loss = [](const Batch& batch, const Model& model) -> LossResult {
      LossResult result(mse(batch, model));
      if (number >= 3 && number != 5) result.metrics.emplace("late", torch::tensor(number, torch::kFloat64));
      return result;
    };
    one.run();
    EXPECT_EQ(values(name, "step_loss").size(), 8u);
    EXPECT_EQ(values(name, "step_late"),
              (std::map<int64_t, double>{{3, 3.0}, {4, 4.0}, {6, 6.0}, {7, 7.0}, {8, 8.0}}));
  }
}

}  // namespace
}  // namespace lockstep
