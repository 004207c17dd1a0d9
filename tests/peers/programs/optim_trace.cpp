// What test_learning_rates.py, test_grad_scaler.py, test_weight_average.py and
// test_deepspeed_optim.py compare with PyTorch and DeepSpeed: reads JSON requests from standard input, one a
// line, and prints each answer as a line of JSON.

#include <lockstep/error.h>
#include <lockstep/optim.h>
#include <lockstep/schedule.h>
#include <torch/torch.h>

#include <iostream>
#include <nlohmann/json.hpp>

namespace {

using nlohmann::json;

// An optimizer with one parameter group for each rate.
template <typename Optimizer, typename Options>
Optimizer make_optimizer(const std::vector<double>& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (double rate : rates) {
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1})}, std::make_unique<Options>(rate));
  }
  return Optimizer(groups, Options(rates.at(0)));
}

torch::optim::SGD make_sgd(const std::vector<double>& rates) {
  return make_optimizer<torch::optim::SGD, torch::optim::SGDOptions>(rates);
}

// [[rate of each group..., momentum] of each step].
json schedule_trace(const json& request) {
  auto optimizer = make_sgd(request.at("base_lrs"));
  lockstep::ScheduledLearningRate rate(optimizer, lockstep::LearningRateSchedule::from_json(
                                                      lockstep::Json::parse(request.at("schedule").dump())));
  json rows = json::array();
  for (int64_t step = 0; step < request.at("steps"); ++step) {
    json row = lockstep::learning_rates(optimizer);
    row.push_back(static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options()).momentum());
    rows.push_back(row);
    rate.advance();
  }
  return rows;
}

// [[rate of each group..., beta1, beta2] of each step].
json adam_schedule_trace(const json& request) {
  using torch::optim::AdamOptions;
  auto optimizer = make_optimizer<torch::optim::Adam, AdamOptions>(request.at("base_lrs"));
  lockstep::ScheduledLearningRate rate(optimizer, lockstep::LearningRateSchedule::from_json(
                                                      lockstep::Json::parse(request.at("schedule").dump())));
  json rows = json::array();
  for (int64_t step = 0; step < request.at("steps"); ++step) {
    json row = lockstep::learning_rates(optimizer);
    const auto [beta1, beta2] = static_cast<AdamOptions&>(optimizer.param_groups()[0].options()).betas();
    row.insert(row.end(), {beta1, beta2});
    rows.push_back(row);
    rate.advance();
  }
  return rows;
}

// {"scales": [scale after each step], "failed": the step whose overflow was an error, or null}.
json deepspeed_scale_trace(const json& request) {
  const json& options = request.at("options");
  lockstep::GradScaler scaler({.deepspeed = lockstep::DeepSpeedScaleOptions{
                                   .initial_scale_power = options.at("initial_scale_power"),
                                   .loss_scale_window = options.at("loss_scale_window"),
                                   .hysteresis = options.at("hysteresis"),
                                   .consecutive_hysteresis = options.at("consecutive_hysteresis"),
                                   .min_loss_scale = options.at("min_loss_scale"),
                               }});
  json scales = json::array();
  for (const bool overflow : request.at("overflows").get<std::vector<bool>>()) {
    scaler.unscale({torch::full({2}, overflow ? std::numeric_limits<float>::infinity() : 1.0F)});
    try {
      scaler.update();
    } catch (const lockstep::ConfigError&) {
      return {{"scales", scales}, {"failed", scales.size()}};
    }
    scales.push_back(scaler.current_scale());
  }
  return {{"scales", scales}, {"failed", nullptr}};
}

std::unique_ptr<torch::optim::Optimizer> make_named(const std::string& name, const at::Tensor& weight,
                                                    const json& options) {
  if (name == "CpuAdam") {
    return lockstep::make_cpu_adam({weight}, {.lr = options.at("lr"),
                                              .beta1 = options.at("betas")[0],
                                              .beta2 = options.at("betas")[1],
                                              .eps = options.at("eps"),
                                              .weight_decay = options.at("weight_decay"),
                                              .adam_w_mode = options.at("adam_w_mode")});
  }
  if (name == "CpuAdagrad") {
    return lockstep::make_cpu_adagrad({weight}, {.lr = options.at("lr"),
                                                 .eps = options.at("eps"),
                                                 .weight_decay = options.at("weight_decay"),
                                                 .lr_decay = options.at("lr_decay")});
  }
  if (name == "Lion") {
    return lockstep::make_lion({weight}, {.lr = options.at("lr"),
                                          .beta1 = options.at("betas")[0],
                                          .beta2 = options.at("betas")[1],
                                          .weight_decay = options.at("weight_decay")});
  }
  if (name == "Lamb") {
    return lockstep::make_lamb({weight}, {.lr = options.at("lr"),
                                          .beta1 = options.at("betas")[0],
                                          .beta2 = options.at("betas")[1],
                                          .eps = options.at("eps"),
                                          .weight_decay = options.at("weight_decay"),
                                          .bias_correction = options.at("bias_correction"),
                                          .eps_inside_sqrt = options.at("eps_inside_sqrt"),
                                          .max_coeff = options.at("max_coeff"),
                                          .min_coeff = options.at("min_coeff")});
  }
  throw std::invalid_argument("unknown optimizer: " + name);
}

// [[weights] after each step] of one float32 tensor with these gradients.
json optimizer_trace(const json& request) {
  auto weight = torch::tensor(request.at("start").get<std::vector<float>>());
  const auto optimizer = make_named(request.at("optimizer"), weight, request.at("options"));
  json rows = json::array();
  for (const json& gradient : request.at("gradients")) {
    weight.mutable_grad() = torch::tensor(gradient.get<std::vector<float>>());
    optimizer->step();
    rows.push_back(std::vector<float>(weight.data_ptr<float>(), weight.data_ptr<float>() + weight.numel()));
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
  if (what == "adam_schedule") return adam_schedule_trace(request);
  if (what == "deepspeed_scale") return deepspeed_scale_trace(request);
  if (what == "optimizer") return optimizer_trace(request);
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
