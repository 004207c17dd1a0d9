// What a training writes to its trackers beside its metrics: gradients and plots.

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "support/temporary_folder.h"
#include "support/training.h"
#include "track/png.h"

namespace lockstep {
namespace {

using test::Training;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

constexpr double kRate = 1.0 / 1024;
// Of a difference of weights of about 1, divided by the rate.
constexpr double kRounding = 1e-11;

// By step and name.
using Values = std::map<int64_t, std::map<std::string, double>>;
using WeightsByName = std::map<std::string, torch::Tensor>;

WeightsByName weights_of(Trainer& trainer) {
  WeightsByName weights;
  for (const auto& item : trainer.model().module()->named_parameters()) {
    weights[item.key()] = item.value().detach().clone();
  }
  return weights;
}

class TrainerTrackersTest : public testing::Test {
 protected:
  TrainerTrackersTest() {
    training_.config = test::quiet_config(folder_.path());
    training_.ranks = 2;
  }

  std::string events() const {
    std::string all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (entry.path().filename().string().find("tfevents") == std::string::npos) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      std::ostringstream text;
      text << file.rdbuf();
      all += text.str();
    }
    return all;
  }

  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> found;
    std::ifstream file(folder_.path() / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) found.push_back(nlohmann::json::parse(line));
    return found;
  }

  // What was written under gradients/.
  Values written_gradients() const {
    Values written;
    for (const nlohmann::json& line : lines()) {
      for (const auto& [name, value] : line.items()) {
        if (name.rfind("gradients/", 0) == 0) written[line.at("step")][name] = value;
      }
    }
    return written;
  }

  test::TemporaryFolder folder_;
  Training training_;
};

// SGD without momentum: a step takes the gradient times its rate off the weights.
class GradientMonitoringTest : public TrainerTrackersTest {
 protected:
  GradientMonitoringTest() {
    training_.config.max_iter = 2;
    training_.make_optimizer = [](auto parameters) {
      return std::make_unique<torch::optim::SGD>(parameters, kRate);
    };
  }

  std::vector<std::shared_ptr<Callback>> callbacks(std::shared_ptr<Callback> monitoring) {
    const auto before = std::make_shared<WeightsByName>();
    return {std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchStart},
                                       [before](Trainer& trainer) { *before = weights_of(trainer); }),
            std::move(monitoring),
            std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchEnd},
                                       [this, before](Trainer& trainer) {
                                         if (trainer.world().is_main()) note(trainer, *before);
                                       })};
  }

  void note(Trainer& trainer, const WeightsByName& before) {
    for (const auto& [name, after] : weights_of(trainer)) {
      taken_[trainer.result().step][name] = (before.at(name) - after) / kRate;
    }
  }

  std::map<int64_t, WeightsByName> taken_;  // gradients by what the weights lost, by step
};

TEST_F(GradientMonitoringTest, WritesWhatAStepTookOffTheWeights) {
  training_.make_callbacks = [this] { return callbacks(std::make_shared<GradientMonitoring>()); };
  training_.run();
  ASSERT_EQ(taken_.size(), 4u) << "64 samples on two ranks, batches of 16, two epochs";
  const Values written = written_gradients();
  ASSERT_EQ(written.size(), taken_.size());
  for (const auto& [step, gradients] : taken_) {
    EXPECT_EQ(written.at(step).size(), 4 * gradients.size()) << "four numbers a parameter";
    for (const auto& [name, gradient] : gradients) {
      SCOPED_TRACE(name);
      const auto value = [&values = written.at(step), at = "gradients/" + name](const char* what) {
        return values.at(at + "/" + what);
      };
      const double mean = gradient.mean().item<double>();
      EXPECT_NEAR(value("mean"), mean, kRounding);
      EXPECT_NEAR(value("std"), std::sqrt((gradient - mean).square().mean().item<double>()), kRounding);
      EXPECT_NEAR(value("max"), gradient.max().item<double>(), kRounding);
      EXPECT_NEAR(value("min"), gradient.min().item<double>(), kRounding);
    }
  }
}

TEST_F(GradientMonitoringTest, WritesHistogramsWhereAskedAndOnlyWhenDue) {
  training_.config.tracking_tool = "tensorboard";
  training_.make_callbacks = [this] {
    return callbacks(std::make_shared<GradientMonitoring>(/*called_every=*/3, /*histograms=*/true));
  };
  training_.run();
  ASSERT_EQ(taken_.size(), 4u);
  const Values written = written_gradients();
  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written.begin()->first, 3);
  std::set<std::string> histograms;
  for (const nlohmann::json& line : lines()) {
    if (!line.contains("histogram")) continue;
    const std::string name = line.at("histogram");
    histograms.insert(name);
    ASSERT_EQ(line.at("step"), 3);
    const torch::Tensor& gradient = taken_.at(3).at(name.substr(std::string("gradients/").size()));
    EXPECT_EQ(line.at("count").get<double>(), static_cast<double>(gradient.numel()));
    EXPECT_NEAR(line.at("min").get<double>(), gradient.min().item<double>(), kRounding);
    EXPECT_NEAR(line.at("max").get<double>(), gradient.max().item<double>(), kRounding);
    EXPECT_NEAR(line.at("sum").get<double>(), gradient.sum().item<double>(), kRounding);
    EXPECT_NEAR(line.at("sum_squares").get<double>(), gradient.square().sum().item<double>(), kRounding);
    double in_buckets = 0;
    for (const nlohmann::json& bucket : line.at("buckets")) in_buckets += bucket.at(2).get<double>();
    EXPECT_EQ(in_buckets, static_cast<double>(gradient.numel()));
    EXPECT_THAT(events(), HasSubstr(name));
  }
  EXPECT_THAT(histograms, UnorderedElementsAre("gradients/0.weight", "gradients/0.bias", "gradients/3.weight",
                                               "gradients/3.bias"));
}

// Shards of the gradients on several ranks, and an engine that forgets them after its update.
TEST_F(GradientMonitoringTest, WritesTheSameAtEveryStage) {
  training_.config.dtype = "float32";
  training_.config.clip_grad_norm = 0.01;  // less than they have
  training_.config.tracking_tool = "none";
  training_.make_callbacks = [] {
    return std::vector<std::shared_ptr<Callback>>{
        std::make_shared<GradientMonitoring>(/*called_every=*/1, /*histograms=*/true)};
  };
  const auto written = [this](const std::string& name, const std::function<void(TrainConfig&)>& change) {
    Training training = training_;
    training.config.log_folder = (folder_.path() / name).string();
    change(training.config);
    training.run();
    std::map<std::string, nlohmann::json> found;  // by step and name
    std::ifstream file(folder_.path() / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto object = nlohmann::json::parse(line);
      for (const auto& [key, value] : object.items()) {
        if (key.rfind("gradients/", 0) == 0)
          found[fmt::format("{} {}", object.at("step").get<int>(), key)] = value;
      }
      if (!object.contains("histogram")) continue;
      const std::string key =
          fmt::format("{} {}", object.at("step").get<int>(), object.at("histogram").get<std::string>());
      for (const char* what : {"min", "max", "count", "sum", "sum_squares"})
        found[key + what] = object.at(what);
    }
    return found;
  };
  const auto expected = written("stage-0", [](TrainConfig&) {});
  ASSERT_EQ(expected.size(), 4u * 4u * (4u + 5u)) << "steps, parameters, numbers";
  const auto compare = [&](const std::map<std::string, nlohmann::json>& found, const std::string& what) {
    SCOPED_TRACE(what);
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, value] : expected) {
      const double number = value.get<double>();
      EXPECT_NEAR(found.at(name).get<double>(), number, 1e-5 * std::abs(number) + 1e-9) << name;
    }
  };
  for (const int stage : {1, 2, 3}) {
    const std::string name = fmt::format("stage-{}", stage);
    compare(written(name,
                    [stage](TrainConfig& config) {
                      config.zero.stage = stage;
                      config.zero.persistence_threshold = 0;
                    }),
            name);
  }
  for (const int stage : {0, 1, 2, 3}) {
    const std::string name = fmt::format("deepspeed-{}", stage);
    const std::string file = (folder_.path() / (name + ".json")).string();
    std::ofstream(file) << fmt::format(
        R"({{"gradient_clipping": 0.01, "zero_optimization": {{"stage": {}}}}})", stage);
    compare(written(name,
                    [&file](TrainConfig& config) {
                      config.clip_grad_norm = 0;
                      config.deepspeed_config = file;
                    }),
            name);
  }
}

TEST_F(TrainerTrackersTest, PlotsAreDrawnByRank0WhenDueAndReachTensorBoard) {
  training_.config.max_iter = 5;
  training_.config.plot_every = 2;
  training_.config.tracking_tool = "tensorboard";
  training_.config.write_every = 0;
  const auto picture = [](int64_t iteration) {
    return Image{.height = 2, .width = 1, .channels = 1, .pixels = {7, static_cast<uint8_t>(iteration)}};
  };
  std::mutex mutex;  // a rank other than 0 must not draw, but would
  std::vector<int64_t> drawn;
  training_.config.plotting_functions = {[&](const Model& model, int64_t iteration) {
                                           const std::lock_guard lock(mutex);
                                           drawn.push_back(iteration);
                                           EXPECT_FALSE(model.module()->is_training());
                                           EXPECT_FALSE(torch::GradMode::is_enabled());
                                           return std::pair(std::string("fit/sine"), picture(iteration));
                                         },
                                         [&](const Model&, int64_t iteration) {
                                           return std::pair(std::string("fit/other"),
                                                            picture(100 + iteration));
                                         }};
  std::atomic<int> training_again = 0;
  training_.make_callbacks = [&] {
    return std::vector<std::shared_ptr<Callback>>{std::make_shared<Callback>(
        CallbackOptions{.on = Stage::kTrainBatchStart},
        [&](Trainer& trainer) { training_again += trainer.model().module()->is_training() ? 1 : 0; })};
  };
  training_.run();
  EXPECT_THAT(drawn, ElementsAre(2, 4));
  EXPECT_EQ(training_again, 5 * 2 * 2) << "after a plot the model trains on: epochs, steps, ranks";
  const std::string written = events();
  EXPECT_THAT(written, HasSubstr("fit/sine"));
  EXPECT_THAT(written, HasSubstr("fit/other"));
  for (const int64_t iteration : {2, 4}) {
    EXPECT_THAT(written, HasSubstr(track::encode_png(picture(iteration))));
    EXPECT_THAT(written, HasSubstr(track::encode_png(picture(100 + iteration))));
  }
  for (const int64_t iteration : {0, 1, 3, 5}) {
    EXPECT_THAT(written, Not(HasSubstr(track::encode_png(picture(iteration)))));
  }
}

}  // namespace
}  // namespace lockstep
