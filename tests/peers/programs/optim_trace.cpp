// What test_learning_rates.py, test_grad_scaler.py and test_weight_average.py compare with
// PyTorch: reads JSON requests from standard input, one a line, and prints each answer as a
// line of JSON.

#include <lockstep/grad_scaler.h>
#include <lockstep/learning_rate.h>
#include <lockstep/reduce_on_plateau.h>
#include <lockstep/weight_average.h>
#include <torch/torch.h>

#include <iostream>
#include <nlohmann/json.hpp>

namespace {

using nlohmann::json;

// An SGD optimizer with one parameter group for each rate.
torch::optim::SGD make_sgd(const std::vector<double>& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (double rate : rates) {
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1})},
                        std::make_unique<torch::optim::SGDOptions>(rate));
  }
  return torch::optim::SGD(groups, torch::optim::SGDOptions(rates.at(0)));
}

// [[rate of each group..., momentum] of each step].
json schedule_trace(const json& request) {
  auto optimizer = make_sgd(request.at("base_lrs"));
  lockstep::ScheduledLearningRate rate(optimizer,
                                       lockstep::LearningRateSchedule::from_json(request.at("schedule")));
  json rows = json::array();
  for (int64_t step = 0; step < request.at("steps"); ++step) {
    json row = lockstep::learning_rates(optimizer);
    row.push_back(static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options()).momentum());
    rows.push_back(row);
    rate.advance();
  }
  return rows;
}

// [rate of each group after each metric].
json plateau_trace(const json& request) {
  auto optimizer = make_sgd(request.at("base_lrs"));
  lockstep::ReduceOnPlateauOptions options;
  options.mode = request.at("mode") == "min" ? lockstep::MetricMode::kMin : lockstep::MetricMode::kMax;
  options.threshold_mode = request.at("threshold_mode") == "rel" ? lockstep::ThresholdMode::kRelative
                                                                 : lockstep::ThresholdMode::kAbsolute;
  options.patience = request.at("patience");
  options.cooldown = request.at("cooldown");
  options.gamma = request.at("gamma");
  options.min_lr = request.at("min_lr");
  lockstep::ReduceOnPlateau plateau(options);
  json rows = json::array();
  for (double metric : request.at("metrics")) {
    plateau.observe(metric, optimizer);
    rows.push_back(lockstep::learning_rates(optimizer));
  }
  return rows;
}

// [[scale, growth tracker, whether skipped, the weight] after each step]. A step is the
// gradient before it is scaled, or "inf" or "nan".
json scaler_trace(const json& request) {
  lockstep::GradScaler scaler({.init_scale = request.at("init_scale"),
                               .growth_factor = request.at("growth_factor"),
                               .backoff_factor = request.at("backoff_factor"),
                               .growth_interval = request.at("growth_interval")});
  auto weight = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD optimizer({weight}, 0.1);
  json rows = json::array();
  for (const json& step : request.at("gradients")) {
    optimizer.zero_grad();
    scaler.scale((weight * (step.is_string() ? 1.0 : step.get<double>())).sum()).backward();
    if (step == "inf") weight.mutable_grad()[1] = std::numeric_limits<double>::infinity();
    if (step == "nan") weight.mutable_grad()[2] = std::numeric_limits<double>::quiet_NaN();
    const int64_t skipped_before = scaler.skipped_steps();
    if (scaler.unscale({weight.grad()})) optimizer.step();
    scaler.update();
    rows.push_back({scaler.current_scale(), scaler.growth_tracker(), scaler.skipped_steps() - skipped_before,
                    weight[0].item<double>()});
  }
  return rows;
}

// A model with a weight, a floating-point buffer and a counter.
struct Averaged : torch::nn::Module {
  explicit Averaged(int64_t size)
      : weight(register_parameter("weight", torch::zeros({size}))),
        running(register_buffer("running", torch::zeros({size}))),
        count(register_buffer("count", torch::zeros({}, torch::kLong))) {}
  at::Tensor weight;
  at::Tensor running;
  at::Tensor count;
};

// [[weight..., running..., count] of the average after each step], for a model that is
// given the same rows step by step.
json average_trace(const json& request) {
  const auto rows = request.at("rows").get<std::vector<std::vector<double>>>();
  const auto size = static_cast<int64_t>(rows.at(0).size() / 2);
  Averaged model(size);
  lockstep::WeightAverageOptions options;
  options.decay = request.at("decay");
  if (request.at("use_buffers")) options.buffers = lockstep::WeightAverageOptions::Buffers::kAverage;
  lockstep::WeightAverage average(model, options);
  json result = json::array();
  const torch::NoGradGuard no_grad;
  for (const auto& row : rows) {
    const auto values = torch::tensor(row, torch::kDouble);
    model.weight.copy_(values.narrow(0, 0, size));
    model.running.copy_(values.narrow(0, size, size));
    model.count.fill_(static_cast<int64_t>(row.back()));
    average.update();
    const auto state = average.state();  // weight, running, count
    const auto all = torch::cat({state[0].second.to(torch::kDouble), state[1].second.to(torch::kDouble),
                                 state[2].second.to(torch::kDouble).view(1)});
    result.push_back(std::vector<double>(all.data_ptr<double>(), all.data_ptr<double>() + all.numel()));
  }
  return result;
}

json answer(const json& request) {
  const auto what = request.at("what").get<std::string>();
  if (what == "schedule") return schedule_trace(request);
  if (what == "plateau") return plateau_trace(request);
  if (what == "scaler") return scaler_trace(request);
  if (what == "average") return average_trace(request);
  throw std::invalid_argument("unknown request: " + what);
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) std::cout << answer(json::parse(line)) << std::endl;
}
