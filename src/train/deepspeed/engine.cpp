#include <fmt/format.h>
#include <lockstep/deepspeed.h>
#include <lockstep/error.h>
#include <lockstep/optim.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <array>
#include <cmath>

#include "base/log.h"
#include "config/deepspeed/failure.h"
#include "optim/precision.h"
#include "train/deepspeed/engine_impl.h"
#include "train/deepspeed/make_optimizer.h"
#include "train/deepspeed/make_schedule.h"
#include "train/deepspeed/sharded_options.h"
#include "train/deepspeed/supported.h"

namespace lockstep {

using deepspeed::StepPhase;

namespace {

using C = DeepSpeedConfig;

// Keys that flat buffers implement. Lamb does not use them, because it works on complete parameters.
constexpr std::array kNotWithLamb = {
    deepspeed::Unsupported{"fp16.enabled", [](const C& c) { return c.fp16.enabled; },
                           "Lamb has no float32 masters here: train in fp32, or with torch_autocast"},
    deepspeed::Unsupported{"bf16.enabled", [](const C& c) { return c.bf16.enabled; },
                           "Lamb has no float32 masters here: train in fp32, or with torch_autocast"},
    deepspeed::Unsupported{"gradient_allreduce_op",
                           [](const C& c) { return c.gradient_allreduce_op == C::GradientOp::kSum; },
                           "Lamb's gradients are divided by the ranks before their sum: use mean"},
    deepspeed::Unsupported{"gradient_predivide_factor",
                           [](const C& c) { return c.gradient_predivide_factor != 1; },
                           "Lamb's gradients are divided by the ranks before their sum: remove the line"},
    deepspeed::Unsupported{
        "communication_data_type",
        [](const C& c) { return c.communication_data_type.value_or(C::Dtype::kFp32) != C::Dtype::kFp32; },
        "Lamb's gradients are summed in their own dtype: remove the line"},
    deepspeed::Unsupported{"zero_optimization.overlap_comm",
                           [](const C& c) { return !c.zero.overlap_comm.value_or(true); },
                           "Lamb's gradients are reduced while backward runs: remove the line"},
};

[[noreturn]] void refuse_lbfgs(const C& config) {
  deepspeed::fail_at(
      config, "optimizer.type",
      "LBFGS evaluates the loss itself, as often as it likes, and step() cannot: use the trainer, or "
      "another optimizer");
}

// Applies the rules for optimizers that the file names to the program's own optimizer.
void require_known_class(const C& config, const std::string& name) {
  if (name == "LBFGS" || name == "AdamLbfgs") refuse_lbfgs(config);
  if (name == "Lamb") deepspeed::refuse(config, kNotWithLamb);
  const bool is_deepspeeds = name == "Adam" || name == "AdamW" || name == "Adagrad" || name == "Lion";
  if (config.zero.stage > 0 && !is_deepspeeds && !config.zero_allow_untested_optimizer) {
    deepspeed::fail_at(
        config, "zero_allow_untested_optimizer",
        fmt::format("zero_allow_untested_optimizer is false, and DeepSpeed does not know the program's "
                    "optimizer under ZeRO: set it to true: {}",
                    name));
  }
}

void require_known(const C& config, const torch::optim::Optimizer* own) {
  config.validate();
  deepspeed::require_supported(config);
  if (own == nullptr && !config.optimizer.exists()) {
    deepspeed::fail_at(
        config, "optimizer",
        "the configuration has no optimizer: add a section optimizer, or give initialize() one");
  }
  if (own != nullptr && config.optimizer.exists()) {
    deepspeed::fail_at(
        config, "optimizer.type",
        "the program brings its own optimizer, and the configuration has one: remove one of them");
  }
  if (config.optimizer.type == C::Optimizer::Type::kLbfgs) refuse_lbfgs(config);
  if (config.optimizer.type == C::Optimizer::Type::kLamb) deepspeed::refuse(config, kNotWithLamb);
  if (own != nullptr) require_known_class(config, optimizer_class(*own));
}

std::vector<at::Tensor> trained_tensors(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : named_parameters(module)) {  // tied parameters once
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  return parameters;
}

c10::Device device_of(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = trained_tensors(module);
  if (parameters.empty()) throw ConfigError("engine", "the model has no parameter that takes a gradient");
  return parameters.front().device();
}

C::BatchTriple batch_at_start(const C& config, int ranks) {
  if (config.train_batch_size || config.train_micro_batch_size_per_gpu) return config.resolve_batch(ranks);
  return {.train_batch_size = 0,
          .micro_batch_size = 0,
          .accumulation_steps = config.gradient_accumulation_steps.value_or(1)};
}

std::optional<base::LogLevel> log_level_of(const C& config) {
  if (!config.log_level) return std::nullopt;
  switch (*config.log_level) {
    case C::LogLevel::kDebug: return base::LogLevel::kDebug;
    case C::LogLevel::kInfo: return base::LogLevel::kInfo;
    case C::LogLevel::kWarning: return base::LogLevel::kWarning;
    case C::LogLevel::kError: break;
  }
  return base::LogLevel::kError;
}

// Before anything is made of it.
C checked(C config, const torch::optim::Optimizer* own) {
  require_known(config, own);
  if (const auto level = log_level_of(config)) base::set_log_level(*level);
  return config;
}

}  // namespace

EngineCore::Impl::Impl(std::shared_ptr<torch::nn::Module> module_, C config_, Communicator communicator_,
                       torch::optim::Optimizer* own_optimizer, std::optional<c10::Device> wanted_device,
                       int local_rank_)
    : config(checked(std::move(config_), own_optimizer)),
      communicator(std::move(communicator_)),
      module(std::move(module_)),
      device(wanted_device.value_or(device_of(*module))),
      local_rank(local_rank_),
      autocast(deepspeed::autocast_dtype(config, device.type())),
      optimizer(own_optimizer),
      report(config, communicator, *module, device),
      batch(batch_at_start(config, communicator.size())) {
  report.say_configuration(batch);
  // With offload_param the model may be larger than the device.
  const bool stays_on_host = config.zero.offload_param.device != C::OffloadDevice::kNone;
  if (!stays_on_host) module->to(device);
  if (optimizer == nullptr) {
    // Made while parameters are float32, as the masters will be: there are kernels for those.
    made_optimizer = deepspeed::make_optimizer(config.optimizer, trained_tensors(*module));
    optimizer = made_optimizer.get();
  }
  if (config.dtype() != C::Dtype::kFp32)
    optim::convert_floating_point(*module, deepspeed::scalar_type(config.dtype()));
  parallel::ParallelOptions options{.sharding = deepspeed::sharded_options(config)};
  if (stays_on_host) options.sharding.device = device;
  // Lamb needs complete parameters; all other optimizers work on flat buckets, also at stage 0.
  if (optimizer_class(*optimizer) != "Lamb") options.stage_zero = parallel::StageZero::kFlatBuckets;
  options.replicated.bucket_cap_bytes = options.sharding.zero.bucket_cap_bytes;
  model = parallel::ParallelModel::make(module, optimizer, communicator, options);
  if (auto made = deepspeed::make_schedule(config.scheduler)) {
    schedule.emplace(*optimizer, std::move(*made));
    schedule->set_step(deepspeed::first_step(config.scheduler));
  }
  if (const auto scale = deepspeed::loss_scale_options(config, device.type())) {
    scaler.emplace(*scale);
    scales_loss = scale->dynamic || scale->init_scale != 1;
  }
  report.watch_collectives();
}

void EngineCore::Impl::meet_batch(int64_t batch_size) {
  if (batch_was_seen) return;
  if (batch.micro_batch_size == 0) batch = config.resolve_batch(communicator.size(), batch_size);
  if (batch_size != batch.micro_batch_size) {
    const int64_t total = batch_size * batch.accumulation_steps * communicator.size();
    deepspeed::fail_at(
        config, config.train_micro_batch_size_per_gpu ? "train_micro_batch_size_per_gpu" : "train_batch_size",
        fmt::format(
            "the first forward has a batch of {}, and the configuration says {} (train_batch_size {} = {} x "
            "gradient_accumulation_steps {} x {} ranks): let the loader feed {}, or set train_batch_size to "
            "{}, or train_micro_batch_size_per_gpu to {}",
            batch_size, batch.micro_batch_size, batch.train_batch_size, batch.micro_batch_size,
            batch.accumulation_steps, communicator.size(), batch.micro_batch_size, total, batch_size));
  }
  batch_was_seen = true;
}

// One pass over the gradients unscales and clips them, as in DeepSpeed. Without a scaler the host does
// not wait for the device.
std::optional<at::Tensor> EngineCore::Impl::gradient_factor() {
  const double clip = config.gradient_clipping;
  norm = model->grad_norm();
  norm_scale = 1;
  if (!scaler) {
    if (clip <= 0) return at::Tensor();
    return ((norm + 1e-6) / clip).clamp_min(1.0).reciprocal();
  }
  norm_scale = scaler->current_scale();
  const double scaled_norm = norm.item<double>();
  scaler->note_overflow(!std::isfinite(scaled_norm), communicator);
  if (!std::isfinite(scaled_norm)) return std::nullopt;
  const double excess = clip > 0 ? std::max(1.0, (scaled_norm / norm_scale + 1e-6) / clip) : 1.0;
  const double divisor = norm_scale * excess;
  if (divisor == 1) return at::Tensor();
  return at::full({}, 1.0 / divisor, norm.options().dtype(at::kFloat));
}

void EngineCore::Impl::update() {
  const std::optional<at::Tensor> factor = gradient_factor();
  step_applied = factor.has_value();
  if (factor && before_step) before_step(*factor);
  if (factor) model->update(*optimizer, *factor);
  model->zero_grad();
  backwards = 0;
  ++global_steps;
  global_samples += batch.train_batch_size;
  if (scaler) scaler->update();
  if (step_applied && schedule) schedule->advance();
  if (!step_applied && communicator.rank() == 0) {
    base::log_info("engine",
                   "step {} was skipped: a gradient is not finite at loss scale {:g}, the next scale is {:g}",
                   global_steps, norm_scale, scaler->current_scale());
  }
}

double EngineCore::Impl::step_loss() const {
  return loss_sum.defined() ? loss_sum.item<double>() / static_cast<double>(batch.accumulation_steps) : 0.0;
}

void EngineCore::Impl::report_step() {
  deepspeed::StepFacts facts;
  facts.step = global_steps;
  facts.skipped = scaler ? scaler->skipped_steps() : 0;
  facts.samples = global_samples;
  facts.batch = batch;
  facts.rates = learning_rates(*optimizer);
  if (scaler) facts.loss_scale = scaler->current_scale();
  facts.norm = [this] { return norm.item<double>() / norm_scale; };
  facts.loss = [this] { return step_loss(); };
  facts.memory = [this] { return model->memory(); };
  report.after_step(facts);
  loss_sum = at::Tensor();
}

void EngineCore::Impl::restart() {
  model->zero_grad();
  backwards = 0;
  micro_steps = 0;
  global_steps = 0;
  global_samples = 0;
  loss_sum = at::Tensor();
  if (schedule) schedule->set_step(deepspeed::first_step(config.scheduler));
  report.restart();
}

EngineCore::EngineCore(std::shared_ptr<torch::nn::Module> module, C config, Communicator communicator,
                       torch::optim::Optimizer* optimizer, std::optional<c10::Device> device, int local_rank)
    : impl_(std::make_unique<Impl>(std::move(module), std::move(config), std::move(communicator), optimizer,
                                   device, local_rank)) {}

EngineCore::~EngineCore() = default;
EngineCore::EngineCore(EngineCore&&) noexcept = default;

EngineCore::Forward::Forward(EngineCore& engine, std::optional<int64_t> batch_size) : impl_(*engine.impl_) {
  const bool trains = at::GradMode::is_enabled() && impl_.module->is_training();
  if (trains && batch_size) impl_.meet_batch(*batch_size);
  impl_.report.begin(StepPhase::kForward);
  impl_.model->prepare_forward();
  if (trains) impl_.report.expect_training(impl_.global_steps);
  if (impl_.autocast) autocast_ = std::make_unique<Autocast>(*impl_.autocast, impl_.device.type());
}

EngineCore::Forward::~Forward() { impl_.report.end(StepPhase::kForward); }

at::Tensor EngineCore::input(const at::Tensor& tensor) const {
  const bool converts = impl_->config.fp16.enabled && impl_->config.fp16.auto_cast;
  return converts && tensor.is_floating_point() ? tensor.to(at::kHalf) : tensor;
}

void EngineCore::backward(const at::Tensor& loss) {
  if (!loss.defined() || loss.numel() != 1) {
    throw ConfigError(
        "engine", fmt::format("the loss must be one number: it has {}", loss.defined() ? loss.numel() : 0));
  }
  if (!loss.requires_grad()) {
    throw ConfigError("engine", "the loss does not depend on any parameter that takes a gradient");
  }
  Impl& impl = *impl_;
  impl.report.begin(StepPhase::kBackward);
  const auto waited = impl.model->exposed_wait();
  std::optional<GradientSync::NoSync> scope;
  if (!is_gradient_accumulation_boundary() && impl.no_syncs == 0) {
    if (auto not_yet = impl.model->accumulate()) scope.emplace(std::move(*not_yet));
  }
  at::Tensor scaled = loss.to(at::promote_types(loss.scalar_type(), at::kFloat));
  if (impl.batch.accumulation_steps > 1) scaled = scaled / static_cast<double>(impl.batch.accumulation_steps);
  if (impl.scales_loss) scaled = impl.scaler->scale(scaled);
  scaled.backward();
  if (impl.report.has_monitors()) {
    const at::Tensor value = loss.detach().to(at::kFloat);
    impl.loss_sum = impl.loss_sum.defined() ? impl.loss_sum + value : value;
  }
  ++impl.backwards;
  impl.reduced = impl.no_syncs == 0 && !scope;
  impl.report.add(StepPhase::kReduce, impl.model->exposed_wait() - waited);
  impl.report.end(StepPhase::kBackward);
}

bool EngineCore::is_gradient_accumulation_boundary() const {
  return !impl_->config.managed_gradient_accumulation ||
         (impl_->micro_steps + 1) % impl_->batch.accumulation_steps == 0;
}

void EngineCore::step() {
  Impl& impl = *impl_;
  if (impl.no_syncs > 0)
    throw ConfigError("engine", "step() was called inside no_sync(): end the scope before it");
  if (impl.backwards == 0) {
    throw ConfigError("engine", "step() was called without a backward() of the engine before it");
  }
  const bool updates = is_gradient_accumulation_boundary();
  if (updates && !impl.reduced) {
    throw ConfigError("engine",
                      "step() would update by this rank's gradients alone: the last backward() before it was "
                      "inside no_sync(); call a backward() outside of it first, which reduces them all");
  }
  impl.step_applied = false;
  if (updates) {
    impl.report.begin(StepPhase::kStep);
    impl.update();
    impl.report.end(StepPhase::kStep);
  }
  ++impl.micro_steps;
  if (updates) impl.report_step();
}

void EngineCore::zero_grad() {
  impl_->model->zero_grad();
  impl_->backwards = 0;
}

EngineCore::NoSync::NoSync(Impl* engine) : engine_(engine), sync_(engine->model->no_sync()) {
  ++engine_->no_syncs;
}
EngineCore::NoSync::NoSync(NoSync&& other) noexcept
    : engine_(std::exchange(other.engine_, nullptr)), sync_(std::move(other.sync_)) {}
EngineCore::NoSync::~NoSync() {
  if (engine_ != nullptr) --engine_->no_syncs;
}

bool EngineCore::was_step_applied() const { return impl_->step_applied; }
int64_t EngineCore::micro_steps() const { return impl_->micro_steps; }
int64_t EngineCore::global_steps() const { return impl_->global_steps; }
int64_t EngineCore::skipped_steps() const { return impl_->scaler ? impl_->scaler->skipped_steps() : 0; }
int64_t EngineCore::global_samples() const { return impl_->global_samples; }
std::vector<double> EngineCore::get_lr() const { return learning_rates(*impl_->optimizer); }
std::optional<double> EngineCore::get_global_grad_norm() const {
  if (!impl_->norm.defined()) return std::nullopt;
  return impl_->norm.item<double>() / impl_->norm_scale;
}
double EngineCore::loss_scale() const { return impl_->scaler ? impl_->scaler->current_scale() : 1; }
C::BatchTriple EngineCore::batch() const { return impl_->batch; }
const C& EngineCore::config() const { return impl_->config; }
const Communicator& EngineCore::communicator() const { return impl_->communicator; }
torch::optim::Optimizer& EngineCore::optimizer() { return *impl_->optimizer; }
ScheduledLearningRate* EngineCore::scheduler() { return impl_->schedule ? &*impl_->schedule : nullptr; }
c10::Device EngineCore::device() const { return impl_->device; }
int EngineCore::local_rank() const { return impl_->local_rank; }

Loader EngineCore::loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options) const {
  const Impl& impl = *impl_;
  if (impl.batch.micro_batch_size == 0) {
    throw ConfigError("engine",
                      "the loader needs a batch size, and the configuration has none: set "
                      "train_micro_batch_size_per_gpu in it");
  }
  options.batch_size = impl.batch.micro_batch_size;
  options.drop_last = options.drop_last || impl.config.dataloader_drop_last;
  return Loader(std::move(dataset), options)
      .shard(impl.communicator.rank(), impl.communicator.size(), ShardKind::kTrain);
}

void EngineCore::log_comms_summary(bool show_straggler) const {
  impl_->report.log_comms_summary(show_straggler);
}
std::shared_ptr<void> EngineCore::gather_parameters() { return impl_->model->gather_parameters(); }

}  // namespace lockstep
