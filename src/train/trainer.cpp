#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/exported_model.h>
#include <lockstep/nn.h>
#include <lockstep/physics.h>
#include <lockstep/schedule.h>
#include <lockstep/search.h>
#include <lockstep/sharded.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <set>
#include <string>

#include "base/log.h"
#include "optim/optimizer_state.h"
#include "optim/precision.h"
#include "parallel/parallel_model.h"
#include "report/report.h"
#include "train/engine_step.h"
#include "train/evaluator.h"
#include "train/fit_loop.h"
#include "train/gpu_log.h"
#include "train/gradient_step.h"
#include "train/search_step.h"
#include "train/trainer_impl.h"

namespace lockstep {
namespace {

Model place_model(Model model, std::optional<c10::Device> device, c10::ScalarType dtype) {
  if (device) model.module()->to(*device);
  optim::convert_floating_point(*model.module(), dtype);
  return model;
}

// With offload_param the model is sharded in host memory: it may be larger than the device.
std::optional<c10::Device> home_of(const TrainConfig& config, const World& world) {
  if (config.zero.offload_param.device != OffloadDevice::kNone) return std::nullopt;
  return world.device();
}

// Only Adagrad allocates its sums before the first gradient, for the parameters before they were moved
// and converted.
void move_optimizer_state(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      auto* state = dynamic_cast<torch::optim::AdagradParamState*>(found->second.get());
      if (state != nullptr) state->sum(state->sum().to(parameter.device(), parameter.scalar_type()));
    }
  }
}

// LibTorch's error does not name the option.
void check_rates(const torch::optim::Optimizer& optimizer, c10::ScalarType dtype) {
  const double most = c10::toRealValueType(dtype) == torch::kFloat64
                          ? std::numeric_limits<double>::max()
                          : static_cast<double>(std::numeric_limits<float>::max());
  for (const double rate : learning_rates(optimizer)) {
    if (std::abs(rate) <= most) continue;
    throw ConfigError("train",
                      fmt::format("the learning rate must be a number of at most {:g}: {:g}", most, rate));
  }
}

// LibTorch would update the parameter twice in each step.
void refuse_doubles(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer) {
  std::set<const void*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      std::string name = "?";
      for (const auto& [known, tensor] : named_parameters(module)) {
        if (tensor.is_same(parameter)) name = known;
      }
      throw ConfigError(
          "train",
          fmt::format("the optimizer has the parameter '{}' twice, and would update it twice a step: "
                      "Module::parameters() lists a tied weight under each of its names, "
                      "lockstep::named_parameters() once",
                      name));
    }
  }
}

void check_optimizer(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                     c10::ScalarType dtype) {
  refuse_doubles(module, optimizer);
  check_rates(optimizer, dtype);
}

// What complex parameters do not go with. dtype complex64 is not the only way to have some: a module may
// register complex parameters by itself.
void check_complex(const torch::nn::Module& module, const torch::optim::Optimizer* optimizer,
                   const TrainConfig& config) {
  std::string name;
  for (const auto& [known, parameter] : named_parameters(module)) {
    if (parameter.requires_grad() && parameter.is_complex()) name = known;
  }
  if (name.empty()) return;
  const auto refuse = [&](std::string_view what) {
    throw ConfigError("train", fmt::format("{}: the parameter '{}' is complex", what, name));
  };
  if (optimizer == nullptr) refuse("training without gradients is for real parameters");
  if (config.zero.stage > 0) refuse("zero_stage does not shard complex parameters, set it to 0");
  if (config.precision != "fp32") refuse("mixed precision is for real parameters, set precision to fp32");
  if (config.clip_grad_value > 0) refuse("clip_grad_value is for real gradients, use clip_grad_norm");
  if (!optim::supports_complex(*optimizer)) {
    refuse(
        fmt::format("the optimizer {} is for real parameters, use torch::optim::SGD, make_python_adam() or "
                    "make_adadelta()",
                    optimizer_class(*optimizer)));
  }
}

std::optional<DeepSpeedConfig> read_deepspeed(const TrainConfig& config) {
  if (config.deepspeed) config.validate();  // throws: deepspeed needs deepspeed_config
  if (config.deepspeed_config.empty()) return std::nullopt;
  return DeepSpeedConfig::from_argument(config.deepspeed_config);
}

TrainConfig resolved(TrainConfig config, const std::optional<DeepSpeedConfig>& deepspeed,
                     const World& world) {
  for (const auto& callback : config.callbacks) {
    if (const auto* load = dynamic_cast<const LoadCheckpoint*>(callback.get())) config.resume = load->path();
  }
  config.validate();
  if (deepspeed) config = train::governed_by(*deepspeed, std::move(config), world);
  if (config.gpu_log_every > 0 && world.device().is_cuda()) {
    const std::chrono::duration<double> period(config.gpu_log_every);
    const auto log = train::gpu_log(std::chrono::ceil<std::chrono::milliseconds>(period));
    config.callbacks.insert(config.callbacks.begin(), log.begin(), log.end());
  }
  return config;
}

void use_deterministic_algorithms() {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

parallel::ParallelOptions parallel_options(const TrainConfig& config, c10::Device device) {
  parallel::ParallelOptions options;
  options.stage_zero = parallel::StageZero::kReplicate;
  options.sharding.zero = config.zero;
  options.sharding.find_unused_parameters = config.find_unused_parameters;
  if (config.precision != "fp32") {
    options.sharding.autocast_dtype = config.precision == "bf16" ? at::kBFloat16 : at::kHalf;
  }
  const auto bytes = [](double mib) { return std::max<int64_t>(1, std::llround(mib * (1 << 20))); };
  if (config.bucket_cap_mb) {
    options.sharding.zero.bucket_cap_bytes = bytes(*config.bucket_cap_mb);
    options.replicated.bucket_cap_bytes = bytes(*config.bucket_cap_mb);
  }
  if (config.first_bucket_cap_mb)
    options.replicated.first_bucket_cap_bytes = bytes(*config.first_bucket_cap_mb);
  options.replicated.static_graph = config.static_graph;
  if (config.gradient_compression == "fp16") options.replicated.compression = GradientCompression::kFloat16;
  if (config.gradient_compression == "bf16") options.replicated.compression = GradientCompression::kBFloat16;
  // The model is still in host memory.
  if (config.zero.offload_param.device != OffloadDevice::kNone) options.sharding.device = device;
  return options;
}

// convert_sync_batch_norm() replaces modules, and would find none.
void refuse_exported_batch_norm(const torch::nn::Module& module) {
  for (const auto& part : module.modules()) {
    const auto* exported = dynamic_cast<const ExportedModelImpl*>(part.get());
    if (exported == nullptr) continue;
    for (const auto& [name, count] : exported->operators()) {
      if (name.find("batch_norm") == std::string::npos) continue;
      throw ConfigError(
          "train", fmt::format("sync_batch_norm does not work with an exported model, whose batch norm is "
                               "the operator {}: leave it out, or export a model without batch norm",
                               name));
    }
  }
}

// The kinds of step. A new kind is added here.
std::unique_ptr<train::Step> make_step(train::StepParts& parts, torch::optim::Optimizer* optimizer,
                                       GradientFreeOptimizer* search,
                                       const std::optional<DeepSpeedConfig>& deepspeed,
                                       c10::ScalarType dtype) {
  if (deepspeed) {
    if (optimizer == nullptr) {
      throw ConfigError(
          "train", "deepspeed_config is about gradients, and training without them has none: leave it out");
    }
    // The optimizer that a configuration names is checked by its reader.
    if (!deepspeed->optimizer.exists()) check_optimizer(*optimizer, *parts.model.module(), dtype);
    return std::make_unique<train::EngineStep>(parts, *deepspeed, *optimizer);
  }
  if (optimizer != nullptr) check_optimizer(*optimizer, *parts.model.module(), dtype);
  check_complex(*parts.model.module(), optimizer, parts.config);
  parts.parallel = parallel::ParallelModel::make(parts.model.module(), optimizer, parts.world.communicator(),
                                                 parallel_options(parts.config, parts.world.device()));
  if (parts.config.precision == "fp16") parts.scaler.emplace();
  if (search != nullptr) return std::make_unique<train::SearchStep>(parts, *search);
  return std::make_unique<train::GradientStep>(parts, *optimizer);
}

}  // namespace

Trainer::Impl::Impl(Trainer& self_, World& world_, Model model_, torch::optim::Optimizer* optimizer,
                    GradientFreeOptimizer* search, TrainConfig config_, Loss loss_)
    : self(self_),
      world(world_),
      deepspeed(read_deepspeed(config_)),
      config(resolved(std::move(config_), deepspeed, world)),
      dtype(optim::parse_dtype(config.dtype)),
      // An engine makes its optimizer first, then moves and converts the model.
      model(deepspeed ? place_model(std::move(model_), std::nullopt, torch::kFloat32)
                      : place_model(std::move(model_), home_of(config, world), dtype)),
      loss(std::move(loss_)),
      parts{.world = world, .model = model, .loss = loss, .config = config, .clock = clock} {
  if (config.sync_batch_norm) refuse_exported_batch_norm(*model.module());
  // The new layers share the parameters that the optimizer has.
  if (config.sync_batch_norm && world.size() > 1) {
    convert_sync_batch_norm(*model.module(), world.communicator());
  }
  step = make_step(parts, optimizer, search, deepspeed, dtype);
  if (!loss) throw ConfigError("train", "a trainer needs a loss: mse, cross_entropy, nll or a function");
  if (config.zero.stage == 3 && loss.target<GradWeightedLoss>() != nullptr) {
    throw ConfigError("train",
                      "GradWeightedLoss needs the gradients of whole parameters, which no rank has with "
                      "zero_stage 3: use zero_stage 2");
  }
  if (step->optimizer() != nullptr) move_optimizer_state(*step->optimizer());
  if (config.deterministic) use_deterministic_algorithms();
  if (config.cudnn_benchmark) at::globalContext().setBenchmarkCuDNN(true);
  if (config.ema_decay > 0) make_average();
  progress.result.rank = world.rank();
  progress.result.device = world.device().str();
}

void Trainer::Impl::make_average() {
  average.emplace(*model.module(), WeightAverageOptions{.decay = config.ema_decay});
}

void Trainer::Impl::call_callbacks(Stage at, int64_t count) {
  stage = at;
  for (const auto& callback : config.callbacks) {
    if (callback->on() != at) continue;
    step->finish_update();
    callback->call(self, count);
  }
}

void Trainer::Impl::begin(Stage at, int64_t count, const Batch& batch) {
  stage = at;
  switch (at) {
    case Stage::kTrainStart: self.on_train_start(); break;
    case Stage::kTrainEpochStart: self.on_train_epoch_start(); break;
    case Stage::kTrainBatchStart: self.on_train_batch_start(batch); break;
    case Stage::kValEpochStart: self.on_val_epoch_start(); break;
    case Stage::kValBatchStart: self.on_val_batch_start(batch); break;
    case Stage::kTestBatchStart: self.on_test_batch_start(batch); break;
    default: break;
  }
  call_callbacks(at, count);
}

void Trainer::Impl::end(Stage at, int64_t count, const LossResult& outcome) {
  call_callbacks(at, count);
  switch (at) {
    case Stage::kTrainEnd: self.on_train_end(progress.train_losses, progress.val_losses); break;
    case Stage::kTrainEpochEnd: self.on_train_epoch_end(); break;
    case Stage::kTrainBatchEnd: self.on_train_batch_end(outcome); break;
    case Stage::kValEpochEnd: self.on_val_epoch_end(); break;
    case Stage::kValBatchEnd: self.on_val_batch_end(outcome); break;
    case Stage::kTestBatchEnd: self.on_test_batch_end(outcome); break;
    default: break;
  }
}

void Trainer::Impl::record(const std::string& phase, const Evaluation& evaluation) {
  progress.result.loss = evaluation.loss;
  progress.result.metrics[phase + "_loss"] = evaluation.loss;
  for (const auto& [name, value] : evaluation.metrics) progress.result.metrics[phase + "_" + name] = value;
}

Evaluation Trainer::Impl::evaluate(const DataSource& data, const std::string& phase,
                                   std::optional<int64_t> limit) {
  const bool is_test = phase == "test";
  const Stage batch_start = is_test ? Stage::kTestBatchStart : Stage::kValBatchStart;
  const Stage batch_end = is_test ? Stage::kTestBatchEnd : Stage::kValBatchEnd;
  int64_t batches = 0;
  train::BatchHooks hooks;
  hooks.start = [&](const Batch& batch) { begin(batch_start, ++batches, batch); };
  hooks.end = [&](const LossResult& outcome) { end(batch_end, batches, outcome); };
  // Outside of fit() the evaluation has a bar of its own.
  std::optional<train::ProgressBar> own_bar;
  if (bar == nullptr) own_bar.emplace(config.verbose ? config.progress : "none", world.is_main());
  const std::string shown_name = is_test          ? "test"
                                 : phase == "val" ? "validation"
                                                  : "validation " + phase.substr(4);
  // All ranks use rank 0's buffers: an evaluation must not depend on the rank that runs it.
  const bool in_step = step->parallel().prepare_evaluation();
  std::optional<WeightAverage::Swap> averaged;
  if (average) averaged.emplace(average->swap_in());
  const auto forward = [this](const Batch& batch) { return step->forward(batch); };
  const Evaluation evaluation = train::evaluate(data, world, dtype, forward, {model, in_step, limit}, config,
                                                hooks, {bar != nullptr ? *bar : *own_bar, shown_name});
  record(phase, evaluation);
  progress.result.evaluated_samples = evaluation.samples;
  stage = Stage::kIdle;
  return evaluation;
}

Evaluation Trainer::Impl::validate(const DataSource& data, bool also_sets, std::optional<int64_t> limit) {
  begin(Stage::kValEpochStart, progress.result.iteration);
  Evaluation evaluation;
  if (also_sets) {
    for (const auto& [name, set] : validation_sets) evaluation = evaluate(set, "val_" + name, limit);
  }
  // Last, so that `loss` and `evaluated_samples` of the result are those of these data.
  if (!data.empty() || !also_sets) evaluation = evaluate(data, "val", limit);
  end(Stage::kValEpochEnd, progress.result.iteration);
  stage = Stage::kIdle;
  return evaluation;
}

Trainer::Trainer(World& world, Model model, torch::optim::Optimizer& optimizer, TrainConfig config, Loss loss)
    : impl_(std::make_unique<Impl>(*this, world, std::move(model), &optimizer, nullptr, std::move(config),
                                   std::move(loss))) {}

Trainer::Trainer(World& world, Model model, GradientFreeOptimizer& optimizer, TrainConfig config, Loss loss)
    : impl_(std::make_unique<Impl>(*this, world, std::move(model), nullptr, &optimizer, std::move(config),
                                   std::move(loss))) {}

Trainer::~Trainer() = default;

FitResult Trainer::fit(const DataSource& train, const DataSource& validation) {
  return train::FitLoop(*impl_, train, validation).run();
}

void Trainer::add_validation_set(const std::string& name, const DataSource& data) {
  if (name.empty() || !impl_->validation_sets.emplace(name, data).second) {
    throw ConfigError("train",
                      fmt::format("a validation set needs a name that no other one has: '{}'", name));
  }
}

Evaluation Trainer::validate(const DataSource& data) {
  return impl_->validate(data, /*also_sets=*/false, config().max_val_batches);
}

Evaluation Trainer::test(const DataSource& data) { return impl_->evaluate(data, "test"); }

at::Tensor Trainer::predict(const Loader& loader) {
  const bool in_step = impl_->step->parallel().prepare_evaluation();
  std::optional<WeightAverage::Swap> averaged;
  if (impl_->average) averaged.emplace(impl_->average->swap_in());
  return train::predict(loader, impl_->world, impl_->dtype, {impl_->model, in_step}, impl_->config);
}

std::shared_ptr<void> Trainer::gather_parameters() {
  ShardedModel* sharded = impl_->step->sharded();
  if (sharded == nullptr) return nullptr;
  return std::make_shared<ShardedModel::Gathered>(sharded->gather_parameters());
}

void Trainer::save_weights(const std::string& file, Weights which) {
  const bool is_average = which == Weights::kAverage;
  if (is_average && !impl_->average) {
    throw ConfigError("train", "there is no average of the weights to save: set ema_decay");
  }
  if (impl_->step->sharded() != nullptr) {
    impl_->world.communicator().meet("save_weights");
  }
  const std::shared_ptr<void> whole = gather_parameters();
  if (!impl_->world.is_main()) return;
  std::optional<WeightAverage::Swap> averaged;
  if (is_average) averaged.emplace(impl_->average->swap_in());
  lockstep::save_weights(*impl_->model.module(), file);
}

void Trainer::write_report() {
  if (run_folder().empty()) throw ConfigError("train", "there is no run to report: call fit() first");
  if (!impl_->world.is_main()) return;
  const std::filesystem::path folder = run_folder();
  try {
    report::write_report({folder}, folder / "report.html");
    if (config().verbose) print("Report: " + (folder / "report.html").string());
  } catch (const std::exception& error) {
    base::log_warning("train", "the report was not written: {}", error.what());
  }
}

void Trainer::set_optimize_step(OptimizeStep step) { impl_->parts.custom = std::move(step); }

void Trainer::on_preemption(std::function<void()> save) { impl_->preemption_save = std::move(save); }

struct Trainer::OptimizerScope::Saved {
  Impl& impl;
  std::unique_ptr<train::Step> step;
};

Trainer::OptimizerScope::OptimizerScope(std::unique_ptr<Saved> saved) : saved_(std::move(saved)) {}
Trainer::OptimizerScope::OptimizerScope(OptimizerScope&&) noexcept = default;

Trainer::OptimizerScope::~OptimizerScope() {
  if (saved_) saved_->impl.step = std::move(saved_->step);
}

Trainer::OptimizerScope Trainer::Impl::replace_step(std::unique_ptr<train::Step> replacement) {
  if (fitting) throw ConfigError("train", "the optimizer cannot be changed while fit() runs");
  step->check_replaceable();
  using Saved = OptimizerScope::Saved;
  return OptimizerScope(
      std::unique_ptr<Saved>(new Saved{*this, std::exchange(step, std::move(replacement))}));
}

Trainer::OptimizerScope Trainer::disable_grad_opt(GradientFreeOptimizer& optimizer) {
  return impl_->replace_step(std::make_unique<train::SearchStep>(impl_->parts, optimizer));
}

Trainer::OptimizerScope Trainer::enable_grad_opt(torch::optim::Optimizer& optimizer) {
  return impl_->replace_step(std::make_unique<train::GradientStep>(impl_->parts, optimizer));
}

const World& Trainer::world() const { return impl_->world; }
const TrainConfig& Trainer::config() const { return impl_->config; }
const Model& Trainer::model() const { return impl_->model; }
Stage Trainer::stage() const { return impl_->stage; }
const TrainResult& Trainer::result() const { return impl_->progress.result; }

torch::optim::Optimizer& Trainer::optimizer() const {
  torch::optim::Optimizer* const optimizer = impl_->step->optimizer();
  if (optimizer == nullptr) {
    throw ConfigError("train", "training runs without gradients: there is no optimizer with learning rates");
  }
  return *optimizer;
}

void Trainer::modify_result(const std::function<void(TrainResult&)>& change) {
  change(impl_->progress.result);
}

double Trainer::metric(const std::string& name) const {
  const auto& metrics = impl_->progress.result.metrics;
  const auto found = metrics.find(name);
  if (found != metrics.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [key, value] : metrics) known.push_back(key);
  throw ConfigError("train",
                    fmt::format("there is no metric '{}': there are {}", name,
                                known.empty() ? "none yet" : fmt::format("{}", fmt::join(known, ", "))));
}

std::vector<GradientStatistics> Trainer::gradient_statistics(bool with_values) {
  return impl_->step->gradient_statistics(with_values);
}

TrackerSet& Trainer::trackers() {
  // Rows stay in the order of their steps.
  if (impl_->write_waiting) impl_->write_waiting();
  return impl_->trackers != nullptr ? *impl_->trackers : impl_->no_trackers;
}

const std::string& Trainer::run_folder() const { return impl_->run_folder; }

void Trainer::print(const std::string& text) {
  if (!impl_->world.is_main()) return;
  if (impl_->bar != nullptr) impl_->bar->clear();
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void Trainer::stop_training(const std::string& reason) {
  impl_->stop_reason = reason.empty() ? "a callback asked for it" : reason;
}

void Trainer::act(FitAction action) {
  if (impl_->loop != nullptr) impl_->loop->act(action);  // a test outside of fit() has no run
}

void Trainer::save_checkpoint() { impl_->save_requested = true; }

}  // namespace lockstep
