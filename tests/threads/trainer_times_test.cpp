// Where a step's time goes, as the trackers write it.

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "support/temporary_folder.h"
#include "support/training.h"
#include "track/csv_line.h"

namespace lockstep {
namespace {

// Rows of metrics.csv by column; empty fields are 0.
std::vector<std::map<std::string, double>> rows_of(const std::filesystem::path& folder) {
  std::ifstream file(folder / "metrics.csv");
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> columns = track::csv_fields(line);
  std::vector<std::map<std::string, double>> rows;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = track::csv_fields(line);
    for (size_t i = 0; i < fields.size(); ++i) {
      if (i == 0) rows.emplace_back();
      rows.back()[columns.at(i)] = fields[i].empty() ? 0 : std::stod(fields[i]);
    }
  }
  return rows;
}

// The parts are within the epoch's training, whatever the machine does: a validation that
// takes longer than that is none of them.
TEST(TrainerTimesTest, ValidationIsNoPartOfAStep) {
  constexpr int kSamples = 32;
  const test::TemporaryFolder folder;
  test::Training training;
  training.config = test::quiet_config(folder.path());
  training.config.max_iter = 3;
  training.config.val_every = 1;
  training.config.log_every = 0;
  training.samples = kSamples;
  training.make_callbacks = [] {
    const auto work = [](Trainer&) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      while (std::chrono::steady_clock::now() < end) continue;
    };
    return std::vector<std::shared_ptr<Callback>>{
        std::make_shared<Callback>(CallbackOptions{.on = Stage::kValEpochStart}, work)};
  };
  training.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
  const auto rows = rows_of(training.run().result.run_folder);
  ASSERT_EQ(rows.size(), 3u);
  for (auto row : rows) {
    const double parts = row["time_data_s"] + row["time_forward_s"] + row["time_backward_s"] +
                         row["time_exposed_communication_s"] + row["time_optimizer_s"];
    EXPECT_LE(parts, kSamples / row["samples_per_s"]);
    EXPECT_GT(parts, 0);
  }
}

// A step takes the time of its callback at least, also the first one of an epoch.
TEST(TrainerTimesTest, SamplesPerSecondOfARowAreThoseSinceTheRowBefore) {
  constexpr int kBatch = 2;
  static constexpr double kLeastSeconds = 0.004;
  const test::TemporaryFolder folder;
  test::Training training;
  training.ranks = 2;
  training.config = test::quiet_config(folder.path());
  training.config.max_iter = 3;
  training.config.log_every = 1;
  training.samples = 64;
  training.loader = {.batch_size = kBatch};
  training.make_callbacks = [] {
    const auto work = [](Trainer&) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kLeastSeconds);
      while (std::chrono::steady_clock::now() < end) continue;
    };
    return std::vector<std::shared_ptr<Callback>>{
        std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchStart}, work)};
  };
  const auto rows = rows_of(training.run().result.run_folder);
  ASSERT_EQ(rows.size(), 48u);
  for (auto row : rows) {
    EXPECT_GT(row["samples_per_s"], 0) << "step " << row["step"];
    EXPECT_LE(row["samples_per_s"], 2 * kBatch / kLeastSeconds) << "step " << row["step"];
  }
}

}  // namespace
}  // namespace lockstep
