// What test_perceptrain.py compares with perceptrain, which programs/perceptrain_runs.py runs on the same
// cases.
//
//   perceptrain_runs FOLDER
//
// Reads FOLDER/cases.json and its tensors from FOLDER/cases.npz, and prints the results as one JSON object.
// The candidates of searches are those that perceptrain_runs.py wrote to FOLDER/candidates.npz.

#include <lockstep/callbacks.h>
#include <lockstep/landscape.h>
#include <lockstep/launch.h>
#include <lockstep/optim.h>
#include <lockstep/physics.h>
#include <lockstep/search.h>
#include <lockstep/trainer.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using Json = nlohmann::json;
using lockstep::Stage;

std::vector<double> numbers_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kDouble).contiguous().flatten();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

class Cases {
 public:
  explicit Cases(const std::filesystem::path& folder)
      : file_((folder / "cases.npz").string()),
        settings_(Json::parse(std::ifstream(folder / "cases.json"))) {}

  at::Tensor operator()(const std::string& name) const { return lockstep::read_tensor(file_ + ":" + name); }
  const Json& settings() const { return settings_; }

 private:
  const std::string file_;
  const Json settings_;
};

torch::nn::Sequential make_net(int64_t inputs) {
  return torch::nn::Sequential(torch::nn::Linear(inputs, 3), torch::nn::Tanh(), torch::nn::Linear(3, 1));
}

// --- the information content ---

Json content(const Cases& cases, const std::string& number, double eta) {
  torch::nn::Sequential net = make_net(2);
  const at::Tensor before = lockstep::get_parameters(*net);
  lockstep::InformationContentOptions options;
  options.variations = cases("walk" + number);
  const lockstep::InformationContent result(net, lockstep::mse,
                                            {.tensors = {cases("x" + number), cases("y" + number)}},
                                            cases("epsilons"), options);
  const lockstep::IcGradBounds bounds = lockstep::get_ic_grad_bounds(result, eta);
  return {{"values", numbers_of(result.values())},
          {"maximum", {result.maximum().value, result.maximum().epsilon}},
          {"sensitivity", result.sensitivity(eta)},
          {"bounds", {bounds.max_lower, bounds.max_upper, bounds.sensitivity_upper}},
          {"restored", torch::equal(before, lockstep::get_parameters(*net))}};
}

// --- trainings ---

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const std::vector<at::Tensor>& parameters) {
  if (name == "adam") return lockstep::make_python_adam(parameters, {.lr = 0.01});
  if (name == "adam_lbfgs") {
    return lockstep::make_adam_lbfgs(
        parameters, {.switch_step = 5, .adam_lr = 0.01, .lbfgs_lr = 0.1, .lbfgs_max_iter = 5});
  }
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
}

// A trainer that keeps the losses.
class Recorder : public lockstep::Trainer {
 public:
  using Trainer::Trainer;

  Json losses = Json::array();      // of the batches
  Json val_losses = Json::array();  // of the epochs

 protected:
  void on_train_batch_end(const lockstep::LossResult& outcome) override {
    losses.push_back(outcome.loss.item<double>());
  }
  void on_val_epoch_end() override { val_losses.push_back(result().metrics.at("val_loss")); }
};

lockstep::TrainConfig quiet(const std::filesystem::path& folder) {
  lockstep::TrainConfig config;
  config.log_folder = folder.string();
  config.tracking_tool = "none";
  config.val_at_start = false;
  config.verbose = false;
  return config;
}

Json train(const Cases& cases, const Json& setting, lockstep::World& world,
           const std::filesystem::path& folder) {
  torch::nn::Sequential net = make_net(1);
  net->to(torch::kDouble);
  lockstep::set_parameters(*net, cases("weights"));
  lockstep::TrainConfig config = quiet(folder);
  config.max_iter = setting.at("epochs");
  config.dtype = setting.at("dtype");
  config.val_every = 1;
  if (setting.contains("max_batches")) config.max_batches = setting.at("max_batches").get<int64_t>();
  config.max_val_batches = 100;
  const auto optimizer = make_optimizer(setting.at("optimizer"), net->parameters());
  const lockstep::LoaderOptions order{.batch_size = 8, .shuffle = false};
  const lockstep::Loader loader(lockstep::TensorDataset{cases("inputs"), cases("targets")}, order);
  const lockstep::Loader checked(lockstep::TensorDataset{cases("val_inputs"), cases("val_targets")}, order);
  Recorder trainer(world, net, *optimizer, config, lockstep::mse);
  trainer.fit(loader, checked);
  return {{"losses", trainer.losses},
          {"val_losses", trainer.val_losses},
          {"weights", numbers_of(lockstep::get_parameters(*net))}};
}

// --- searches ---

// Proposes points that another optimizer asked for, in its order.
class Replay : public lockstep::GradientFreeOptimizer {
 public:
  Replay(const at::Tensor& points, int64_t population)
      : GradientFreeOptimizer(points[0]), points_(points), population_(population) {}

  Json told = Json::array();

  std::string kind() const override { return "replay"; }
  int64_t population() const override { return population_; }

 protected:
  at::Tensor propose(int64_t n) override {
    next_ += n;
    return points_.narrow(0, next_ - n, n).clone();
  }
  void learn(const at::Tensor& /*candidates*/, const at::Tensor& losses) override {
    for (const double loss : numbers_of(losses)) told.push_back(loss);
  }
  lockstep::NamedTensors own_state() const override { return {}; }

 private:
  const at::Tensor points_;
  const int64_t population_;
  int64_t next_ = 0;
};

Json search(const Cases& cases, const Json& setting, const at::Tensor& candidates, lockstep::World& world,
            const std::filesystem::path& folder) {
  torch::nn::Sequential net = make_net(1);
  net->to(torch::kDouble);
  lockstep::set_parameters(*net, cases("weights"));
  lockstep::TrainConfig config = quiet(folder);
  // A step evaluates a whole population.
  config.max_iter = setting.at("epochs").get<int64_t>() / setting.at("population").get<int64_t>();
  config.dtype = "float64";
  if (setting.contains("max_batches")) config.max_batches = setting.at("max_batches").get<int64_t>();
  const lockstep::Loader loader(lockstep::TensorDataset{cases("inputs"), cases("targets")},
                                {.batch_size = 8, .shuffle = false});
  Replay replay(candidates, setting.at("population"));
  Recorder trainer(world, net, replay, config, lockstep::mse);
  trainer.fit(loader);
  Json points = Json::array();
  for (int64_t i = 0; i < candidates.size(0); ++i) points.push_back(numbers_of(candidates[i]));
  return {{"told", replay.told},
          {"losses", trainer.losses},
          {"candidates", points},
          {"best_loss", replay.best_loss()},
          {"weights", numbers_of(lockstep::get_parameters(*net))}};
}

// --- callbacks ---

Stage stage_named(const std::string& name) {
  for (int value = 0; value <= static_cast<int>(Stage::kTestBatchEnd); ++value) {
    if (name == lockstep::to_string(static_cast<Stage>(value))) return static_cast<Stage>(value);
  }
  throw std::invalid_argument("no stage " + name);
}

// [stage, called_every, epoch] of each call.
Json calls(const Cases& cases, const Json& setting, lockstep::World& world,
           const std::filesystem::path& folder) {
  Json rows = Json::array();
  lockstep::TrainConfig config = quiet(folder);
  config.max_iter = setting.at("epochs");
  config.val_every = setting.at("val_every");
  for (const Json& callback : setting.at("callbacks")) {
    const lockstep::CallbackOptions options{.on = stage_named(callback.at(0)),
                                            .called_every = callback.at(1)};
    config.callbacks.push_back(
        std::make_shared<lockstep::Callback>(options, [&rows, options](const lockstep::Trainer& trainer) {
          rows.push_back({lockstep::to_string(options.on), options.called_every, trainer.result().iteration});
        }));
  }
  torch::nn::Sequential net = make_net(1);
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  const lockstep::Loader loader(lockstep::TensorDataset{cases("inputs"), cases("targets")},
                                {.batch_size = 20});
  lockstep::Trainer(world, net, optimizer, config, lockstep::mse).fit(loader, loader);
  return rows;
}

// --- R3 ---

// The points at the start and after each update, with the number that was released.
Json resample(const Cases& cases, double threshold) {
  const at::Tensor pool = cases("pool");
  int64_t next = 0;
  const auto draw = [&](int64_t count, uint64_t /*seed*/) {
    next += count;
    return pool.narrow(0, next - count, count).clone();
  };
  const at::Tensor fitness = cases("fitness");
  lockstep::R3Dataset points(draw, fitness.size(1), threshold);
  Json rows = {{-1, numbers_of(points.points())}};
  for (int64_t i = 0; i < fitness.size(0); ++i) {
    const int64_t released = points.update(fitness[i]);
    rows.push_back({released, numbers_of(points.points())});
  }
  return rows;
}

Json run(const std::filesystem::path& folder, lockstep::World& world) {
  const Cases cases(folder);
  const Json& settings = cases.settings();
  Json result = {{"content", Json::array()},
                 {"training", Json::object()},
                 {"search", Json::object()},
                 {"calls", Json::array()}};
  for (int64_t i = 0; i < settings.at("contents"); ++i) {
    result["content"].push_back(content(cases, std::to_string(i), settings.at("eta")));
  }
  for (const auto& [name, setting] : settings.at("training").items()) {
    result["training"][name] = train(cases, setting, world, folder / "ours" / name);
  }
  for (const auto& [name, setting] : settings.at("search").items()) {
    const at::Tensor candidates = lockstep::read_tensor((folder / "candidates.npz").string() + ":" + name);
    result["search"][name] = search(cases, setting, candidates, world, folder / "ours" / name);
  }
  for (const Json& setting : settings.at("calls")) {
    const std::string name = "calls-" + std::to_string(result["calls"].size());
    result["calls"].push_back(calls(cases, setting, world, folder / "ours" / name));
  }
  result["r3"] = resample(cases, settings.at("release_threshold"));
  return result;
}

}  // namespace

int main(int /*argc*/, char** argv) {
  return lockstep::run_main([&] {
    return lockstep::launch({}, [&](lockstep::World& world) {
      torch::set_num_threads(1);
      const Json result = run(argv[1], world);
      std::printf("%s\n", result.dump().c_str());
    });
  });
}
