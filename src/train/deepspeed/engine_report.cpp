#include "train/deepspeed/engine_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/json.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <numeric>

#include "base/log.h"
#include "base/number.h"
#include "comm/communicator_internal.h"
#include "config/deepspeed/value.h"
#include "train/deepspeed/sharded_options.h"

namespace lockstep::deepspeed {
namespace {

constexpr auto kCommsComponent = "engine";

// The mean without the smallest and the largest tenth.
double trimmed_mean(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  const auto cut = static_cast<std::ptrdiff_t>(values.size() / 10);
  const auto begin = values.begin() + cut;
  const auto end = values.end() - cut;
  return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
}

double total(const std::vector<float>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// Gigabits per second, as in DeepSpeed.
double algorithm_bandwidth(int64_t bytes, double milliseconds) {
  return milliseconds > 0 ? static_cast<double>(bytes) * 8 / (milliseconds * 1e6) : 0;
}

std::string bandwidths(std::string_view operation, int64_t bytes, double milliseconds, int ranks) {
  const double algorithm = algorithm_bandwidth(bytes, milliseconds);
  return fmt::format("algbw (Gbps): {:.2f} | busbw (Gbps): {:.2f}", algorithm,
                     algorithm * comm::bus_factor(operation, ranks));
}

}  // namespace

CommsLogger::CommsLogger(const DeepSpeedConfig::CommsLogger& options, int ranks, bool speaks)
    : options_(options), ranks_(ranks), speaks_(speaks) {}

void CommsLogger::enter(const char* phase) {
  const base::MutexLock lock(mutex_);
  phase_ = phase;
}

bool CommsLogger::is_wanted(std::string_view operation) const {
  if (options_.prof_all) return true;
  return std::any_of(options_.prof_ops.begin(), options_.prof_ops.end(),
                     [&](const std::string& name) { return deepspeed::operation_of(name) == operation; });
}

void CommsLogger::called(const comm::Call& call) {
  if (!is_wanted(call.operation)) return;
  const base::MutexLock lock(mutex_);
  const double time = std::chrono::duration<double, std::milli>(call.time).count();
  const std::string name =
      options_.debug ? fmt::format("{} [{}]", call.operation, phase_) : std::string(call.operation);
  Record& record = records_[{name, call.bytes}];
  record.operation = call.operation;
  record.milliseconds.push_back(static_cast<float>(time));
  if (!options_.verbose || !speaks_) return;
  base::log_info(kCommsComponent, "comm op: {} | time (ms): {:.2f} | msg size: {} | {}", name, time,
                 base::size_text(call.bytes), bandwidths(call.operation, call.bytes, time, ranks_));
}

CommsLogger::Records CommsLogger::records() const {
  const base::MutexLock lock(mutex_);
  return records_;
}

void CommsLogger::log_summary() const {
  if (!speaks_) return;
  for (const auto& [key, record] : records()) {
    const double mean = trimmed_mean(record.milliseconds);
    base::log_info(kCommsComponent,
                   "comm op: {} | msg size: {} | count: {} | total (ms): {:.2f} | avg (ms): {:.3f} | {}",
                   key.first, base::size_text(key.second), record.milliseconds.size(),
                   total(record.milliseconds), mean, bandwidths(record.operation, key.second, mean, ranks_));
  }
}

void CommsLogger::log_stragglers(const Communicator& group) const {
  const Records own = records();
  Json mine = Json::array();
  for (const auto& [key, record] : own) mine.push_back({key.first, key.second, record.milliseconds});
  std::map<std::pair<std::string, int64_t>, std::vector<float>> least;
  for (const std::string& text : group.all_gather_bytes(mine.dump())) {
    for (const Json& row : Json::parse(text)) {
      const auto times = row.at(2).get<std::vector<float>>();
      const auto [at, is_first] = least.try_emplace({row.at(0).text(), row.at(1).get<int64_t>()}, times);
      if (is_first) continue;
      // If ranks have called it differently often, only the first calls are compared.
      at->second.resize(std::min(at->second.size(), times.size()));
      std::transform(at->second.begin(), at->second.end(), times.begin(), at->second.begin(),
                     [](float a, float b) { return std::min(a, b); });
    }
  }
  if (!speaks_) return;
  for (const auto& [key, record] : own) {
    const std::vector<float>& shortest = least.at(key);
    std::vector<float> waits(shortest.size());
    std::transform(shortest.begin(), shortest.end(), record.milliseconds.begin(), waits.begin(),
                   [](float low, float time) { return time - low; });
    base::log_info(kCommsComponent,
                   "comm op: {} | msg size: {} | count: {} | total comm (ms): {:.2f} | total straggler (ms): "
                   "{:.2f} | avg comm (ms): {:.3f} | avg straggler (ms): {:.3f}",
                   key.first, base::size_text(key.second), shortest.size(), total(shortest), total(waits),
                   trimmed_mean(shortest), trimmed_mean(waits));
  }
}

namespace {

constexpr auto kReportComponent = "engine";

std::unique_ptr<Tracker> open_monitor(const char* kind, const DeepSpeedConfig::Monitor& monitor) {
  TrackerOptions options;
  options.folder = std::filesystem::path(monitor.output_path) / monitor.job_name;
  options.run_name = monitor.job_name;
  return make_tracker(kind, options);
}

double rate(int64_t samples, std::chrono::steady_clock::duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return seconds > 0 ? static_cast<double>(samples) / seconds : 0;
}

// The resolved value: batch sizes follow from each other, and the default of a bucket size is not
// DeepSpeed's.
std::string resolved(const DeepSpeedConfig::AutoValue& value, const DeepSpeedConfig& config,
                     const DeepSpeedConfig::BatchTriple& batch) {
  const auto size = [](int64_t known) {
    return known > 0 ? std::to_string(known) : std::string("what the first batch says");
  };
  if (value.key == "train_batch_size") return size(batch.train_batch_size);
  if (value.key == "train_micro_batch_size_per_gpu") return size(batch.micro_batch_size);
  if (value.key == "gradient_accumulation_steps") return std::to_string(batch.accumulation_steps);
  if (value.key.ends_with("_bucket_size") && !value.key.ends_with("prefetch_bucket_size")) {
    return base::size_text(sharded_options(config).zero.bucket_cap_bytes);
  }
  return value.value;
}

const char* name_of(StepPhase phase) {
  switch (phase) {
    case StepPhase::kForward: return "forward";
    case StepPhase::kBackward: return "backward";
    case StepPhase::kReduce: return "reduce";
    case StepPhase::kStep: return "step";
  }
  return "";
}

}  // namespace

EngineReport::EngineReport(const DeepSpeedConfig& config, const Communicator& group,
                           const torch::nn::Module& model, c10::Device device)
    : config_(config), group_(group), is_main_(group.rank() == 0), device_(device) {
  if (!is_main_) return;
  if (config.flops_profiler.enabled) profiler_.emplace(config.flops_profiler, model, device);
  if (config.tensorboard.enabled) monitors_.add(open_monitor("tensorboard", config.tensorboard));
  if (config.csv_monitor.enabled) monitors_.add(open_monitor("csv", config.csv_monitor));
}

EngineReport::~EngineReport() {
  if (comms_) {
    comm::stop_observing(group_, *comms_);
    comms_->log_summary();
  }
  monitors_.close(std::uncaught_exceptions() > 0 ? RunStatus::kFailed : RunStatus::kFinished);
}

void EngineReport::say_configuration(const DeepSpeedConfig::BatchTriple& batch) const {
  if (!is_main_) return;
  for (const DeepSpeedConfig::AutoValue& value : config_.auto_values) {
    base::log_info(kReportComponent, "{}: \"auto\" is {}", value.key, resolved(value, config_, batch));
  }
  if (config_.dump_state)
    base::log_info(kReportComponent, "configuration: {}",
                   config_.to_json().dump({.indent = 2, .order = Json::Order::kAsAdded}));
}

EngineReport::Clock::time_point EngineReport::now() const {
  comm::wait_for_device(device_);
  return Clock::now();
}

void EngineReport::watch_collectives() {
  if (!config_.comms_logger.enabled) return;
  comms_ = std::make_shared<CommsLogger>(config_.comms_logger, group_.size(), is_main_);
  comm::observe(group_, comms_);
}

void EngineReport::log_comms_summary(bool show_straggler) const {
  if (!comms_) {
    throw ConfigError(kReportComponent,
                      "collectives are not measured: set comms_logger.enabled in the configuration");
  }
  comms_->log_summary();
  if (show_straggler) comms_->log_stragglers(group_);
}

void EngineReport::expect_training(int64_t step) {
  if (profiler_) profiler_->begin_forward(step);
}

void EngineReport::begin(StepPhase phase) {
  if (comms_) comms_->enter(name_of(phase));
  if (measures_phases()) phase_began_ = now();
}

void EngineReport::end(StepPhase phase) {
  if (comms_) comms_->enter("outside");
  if (profiler_ && phase == StepPhase::kForward) profiler_->end_forward();
  if (measures_phases()) add(phase, now() - phase_began_);
}

void EngineReport::add(StepPhase phase, std::chrono::nanoseconds time) {
  times_[static_cast<size_t>(phase)] += time;
}

double EngineReport::milliseconds(StepPhase phase) const {
  return std::chrono::duration<double, std::milli>(times_[static_cast<size_t>(phase)]).count();
}

bool EngineReport::prints_after(int64_t step) const {
  const int64_t period = config_.steps_per_print.value_or(0);
  return period > 0 && step % period == 0;
}

void EngineReport::after_step(const StepFacts& facts) {
  const bool prints = prints_after(facts.step);
  const bool has_period = config_.steps_per_print.value_or(0) > 0;
  if (is_main_ && prints) print_progress(facts);
  if (is_main_ && (prints || !has_period)) print_times(facts);
  if (has_monitors()) write_monitors(facts);
  if (profiler_) print_profile(facts);
  times_ = {};
  if (!first_end_) {
    first_end_ = now();
    first_samples_ = facts.samples;
    last_line_ = *first_end_;
    last_samples_ = facts.samples;
  }
}

void EngineReport::print_progress(const StepFacts& facts) {
  std::string line = fmt::format("step={}, skipped={}, lr=[{}], norm={:.6g}", facts.step, facts.skipped,
                                 fmt::join(facts.rates, ", "), facts.norm());
  if (facts.loss_scale) line += fmt::format(", loss_scale={:g}", *facts.loss_scale);
  base::log_info(kReportComponent, "{}", line);
  if (!config_.throughput_timer.enabled || !first_end_) return;
  if (config_.throughput_timer.synchronized) comm::wait_for_device(device_);
  const auto time = Clock::now();
  base::log_info(kReportComponent, "global_step={}, RunningAvgSamplesPerSec={:.6g}, CurrSamplesPerSec={:.6g}",
                 facts.step, rate(facts.samples - first_samples_, time - *first_end_),
                 rate(facts.samples - last_samples_, time - last_line_));
  last_line_ = time;
  last_samples_ = facts.samples;
}

void EngineReport::print_times(const StepFacts& facts) {
  if (config_.wall_clock_breakdown) {
    const double backward = milliseconds(StepPhase::kBackward);
    const double reduce = milliseconds(StepPhase::kReduce);
    base::log_info(
        kReportComponent,
        "time (ms) | fwd: {:.2f} | bwd: {:.2f} | bwd_inner: {:.2f} | bwd_allreduce: {:.2f} | step: {:.2f}",
        milliseconds(StepPhase::kForward), backward, backward - reduce, reduce,
        milliseconds(StepPhase::kStep));
  }
  if (!config_.memory_breakdown) return;
  if (const auto memory = facts.memory()) {
    const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    base::log_info(
        kReportComponent,
        "memory (MiB) | parameters: {:.2f} | gradients: {:.2f} | master: {:.2f} | optimizer: {:.2f} | "
        "buffers: {:.2f}",
        mib(memory->parameters), mib(memory->gradients), mib(memory->master), mib(memory->optimizer),
        mib(memory->buffers));
  }
}

void EngineReport::print_profile(const StepFacts& facts) {
  const auto time_of = [this](StepPhase phase) { return times_[static_cast<size_t>(phase)]; };
  profiler_->after_step({.step = facts.step - 1,
                         .ranks = group_.size(),
                         .batch = facts.batch,
                         .forward = time_of(StepPhase::kForward),
                         .backward = time_of(StepPhase::kBackward),
                         .update = time_of(StepPhase::kStep)});
}

void EngineReport::write_monitors(const StepFacts& facts) {
  std::vector<Scalar> scalars = {{"Train/Samples/train_loss", facts.loss()},
                                 {"Train/Samples/lr", facts.rates.empty() ? 0.0 : facts.rates.front()},
                                 {"Train/Samples/grad_norm", facts.norm()}};
  if (facts.loss_scale) scalars.push_back({"Train/Samples/loss_scale", *facts.loss_scale});
  if (config_.wall_clock_breakdown) {
    const double backward = milliseconds(StepPhase::kBackward);
    const double reduce = milliseconds(StepPhase::kReduce);
    scalars.push_back({"Train/Samples/elapsed_time_ms_forward", milliseconds(StepPhase::kForward)});
    scalars.push_back({"Train/Samples/elapsed_time_ms_backward", backward});
    scalars.push_back({"Train/Samples/elapsed_time_ms_backward_inner", backward - reduce});
    scalars.push_back({"Train/Samples/elapsed_time_ms_backward_allreduce", reduce});
    scalars.push_back({"Train/Samples/elapsed_time_ms_step", milliseconds(StepPhase::kStep)});
  }
  monitors_.write_scalars(scalars, facts.samples);
}

}  // namespace lockstep::deepspeed
