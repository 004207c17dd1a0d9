// The time left that a progress bar shows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>

#include "support/temporary_folder.h"
#include "support/training.h"

namespace lockstep {
namespace {

// What the bar shows as the time left: whole seconds, by the number of finished steps.
std::map<int64_t, int64_t> seconds_left(const std::string& bars, int64_t steps_an_epoch,
                                        const std::string& epochs) {
  std::map<int64_t, int64_t> left;
  const std::regex bar("epoch ([0-9]+)/" + epochs +
                       " \\[[#-]+\\] ([0-9]+)/[0-9]+ .* (?:([0-9]+):)?([0-9]+):([0-9]+) left");
  std::istringstream lines(bars);
  for (std::string line; std::getline(lines, line, '\r');) {
    std::smatch part;
    if (!std::regex_search(line, part, bar)) continue;
    const auto number = [&part](size_t i) { return part[i].matched ? std::stoll(part[i]) : 0; };
    left[(number(1) - 1) * steps_an_epoch + number(2)] = 3600 * number(3) + 60 * number(4) + number(5);
  }
  return left;
}

TEST(TrainerProgressTest, TheTimeLeftIsToTheLimitAndWithoutValidations) {
  using Seconds = std::chrono::duration<double>;
  constexpr int64_t kSteps = 20000;
  const test::TemporaryFolder folder;
  const auto bars_of = [&folder](const std::string& name, Seconds& validating,
                                 const std::function<void(TrainConfig&)>& limit) {
    test::Training one;
    one.config = test::quiet_config(folder.path() / name);
    one.config.max_iter = 1'000'000'000;
    limit(one.config);
    one.config.val_every_steps = 2;
    one.config.val_at_start = false;
    one.config.verbose = true;
    one.config.progress = "bar";
    const auto work = [&validating](Trainer& trainer) {
      // The bar is drawn again after a tenth of a second.
      const auto begin = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() < begin + std::chrono::milliseconds(200)) continue;
      validating += std::chrono::steady_clock::now() - begin;
      if (trainer.result().step >= 4) trainer.stop_training("enough");
    };
    one.config.callbacks = {std::make_shared<Callback>(CallbackOptions{.on = Stage::kValEpochEnd}, work)};
    one.fit = [](Trainer& trainer, const Loader& data) { return trainer.fit(data, data); };
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    one.run();
    testing::internal::GetCapturedStdout();
    return testing::internal::GetCapturedStderr();
  };
  const auto start = std::chrono::steady_clock::now();
  Seconds validating{0};
  const std::string by_steps =
      bars_of("steps", validating, [](TrainConfig& config) { config.max_steps = kSteps; });
  const Seconds rest = Seconds(std::chrono::steady_clock::now() - start) - validating;
  const auto left = seconds_left(by_steps, /*steps_an_epoch=*/4, /*epochs=*/"5000");
  ASSERT_FALSE(left.empty()) << by_steps;
  for (const auto& [done, seconds] : left) {
    EXPECT_LE(static_cast<double>(seconds),
              rest.count() * static_cast<double>(kSteps - done) / static_cast<double>(done))
        << "after " << done << " steps: they took at most " << rest.count() << " s in all";
  }
  EXPECT_THAT(by_steps, testing::HasSubstr("\rvalidation [--------------------] 0/4\033[K"));

  const std::string by_time =
      bars_of("seconds", validating, [](TrainConfig& config) { config.max_time_s = 3000; });
  const auto to_limit = seconds_left(by_time, 4, "1000000000");
  ASSERT_FALSE(to_limit.empty()) << by_time;
  for (const auto& [done, seconds] : to_limit) EXPECT_LE(seconds, 3000);
}

}  // namespace
}  // namespace lockstep
