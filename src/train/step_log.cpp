#include "train/step_log.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fcntl.h>
#include <lockstep/communicator.h>
#include <lockstep/config.h>
#include <lockstep/json.h>
#include <lockstep/launch.h>
#include <lockstep/track.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>

#include "comm/communicator_internal.h"
#include "train/metric_sums.h"

namespace lockstep::train {
namespace {

constexpr int64_t kRowsPerEpoch = 50;
// In a long training of tiny steps, rows closer together would cost more than they show.
constexpr int64_t kLeastDistance = 20;
constexpr int64_t kShortTraining = 1000;
constexpr double kBytesPerMib = 1 << 20;
constexpr const char* kLoss = "loss";

// Resident memory of this process by its file /proc/self/statm; 0: unknown.
double resident_bytes(int statm) {
  std::array<char, 128> text{};
  if (::pread(statm, text.data(), text.size() - 1, 0) <= 0) return 0;
  char* end = nullptr;
  std::strtoll(text.data(), &end, 10);  // all pages, then those in memory
  return static_cast<double>(std::strtoll(end, nullptr, 10)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

int64_t steps_between_rows(const TrainConfig& config, int64_t steps_per_epoch) {
  if (config.log_every) return *config.log_every;
  // The row of the epoch is that of its only step.
  if (config.write_every == 0 || steps_per_epoch <= 1) return 0;
  const int64_t apart = (steps_per_epoch + kRowsPerEpoch - 1) / kRowsPerEpoch;
  const bool is_short = config.max_iter <= kShortTraining / steps_per_epoch ||
                        (config.max_steps > 0 && config.max_steps <= kShortTraining);
  return is_short ? apart : std::max(apart, kLeastDistance);
}

StepLog::StepLog(const World& world, const TrainConfig& config, int64_t steps_per_epoch)
    : world_(world),
      every_(steps_between_rows(config, steps_per_epoch)),
      over_ranks_(config.all_reduce_metrics && world.size() > 1),
      statm_(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC)) {}

void StepLog::note_metrics(const LossResult& outcome) {
  own_.try_emplace(kLoss, Metric{kLoss});
  for (const auto& [name, value] : outcome.metrics) own_.try_emplace(name, Metric{name});
  for (const auto& [name, counts] : outcome.counts) {
    if (counts.appended) continue;  // a row for each sample
    own_.try_emplace(name, Metric{name, counts.counts.numel(), true});
  }
}

bool StepLog::lacks_place() const {
  return std::any_of(own_.begin(), own_.end(), [this](const auto& own) {
    return std::none_of(metrics_.begin(), metrics_.end(),
                        [&](const Metric& metric) { return metric.name == own.first; });
  });
}

// The ranks add their sums as one tensor, so they agree on its layout. A metric that a rank does not have in
// a step is missing from the row's sums.
void StepLog::make_places() {
  std::map<std::string, Metric> all;
  for (const Metric& metric : metrics_) all.emplace(metric.name, metric);
  if (!over_ranks_) {
    all.insert(own_.begin(), own_.end());
  } else {
    Json own = Json::array();
    for (const auto& [name, metric] : own_) own.push_back({name, metric.size, metric.is_count});
    for (const std::string& part : world_.communicator().all_gather_bytes(own.dump())) {
      const Json other = Json::parse(part);
      for (size_t i = 0; i < other.size(); ++i) {
        const Json& entry = other.at(i);
        const std::string name = entry.at(0).get<std::string>();
        all.try_emplace(name, Metric{name, entry.at(1).get<int64_t>(), entry.at(2).get<bool>()});
      }
    }
  }
  metrics_.clear();
  for (const auto& [name, metric] : all) metrics_.push_back(metric);
}

// The row was queued before the step that ends now, which the device computes meanwhile.
bool StepLog::lacked_place() {
  if (!lacking_) return false;
  lacking_->computed.synchronize();
  const bool lacked = *lacking_->numbers.const_data_ptr<double>() > 0;
  lacking_.reset();
  return lacked;
}

std::vector<double> StepLog::host_sums(const Row& row) const {
  std::vector<double> sums = {lacks_place() ? 1.0 : 0.0};
  const auto samples = static_cast<double>(row.samples);
  for (const Metric& metric : metrics_) {
    const auto mean = row.outcome.metrics.find(metric.name);
    const auto counts = row.outcome.counts.find(metric.name);
    const bool has_counts =
        metric.is_count && counts != row.outcome.counts.end() && counts->second.counts.numel() == metric.size;
    if (metric.name == kLoss || (!metric.is_count && mean != row.outcome.metrics.end())) {
      sums.push_back(scalar_value(metric.name == kLoss ? row.outcome.loss : mean->second) * samples);
      sums.push_back(samples);
    } else if (has_counts) {
      const at::Tensor numbers = counts->second.counts.detach().to(torch::kCPU, torch::kFloat64).contiguous();
      const double* const first = numbers.const_data_ptr<double>();
      sums.insert(sums.end(), first, first + metric.size);
      sums.push_back(1);
    } else {
      sums.resize(sums.size() + static_cast<size_t>(metric.size) + 1);
    }
  }
  if (over_ranks_) {
    const Communicator& group = world_.communicator();
    const at::Tensor own =
        torch::from_blob(sums.data(), {static_cast<int64_t>(sums.size())}, torch::kFloat64);
    // A copy only where the group does not take tensors of the host.
    const at::Tensor all = own.to(comm::device_of(group));
    group.all_reduce(all).wait();
    if (!all.is_same(own)) own.copy_(all);
  }
  if (row.gradient_norm.defined()) sums.push_back(scalar_value(row.gradient_norm));
  return sums;
}

at::Tensor StepLog::device_sums(const Row& row) const {
  const torch::NoGradGuard no_grad;
  const auto options = row.outcome.loss.options().dtype(torch::kFloat64).requires_grad(false);
  const auto samples = static_cast<double>(row.samples);
  std::vector<at::Tensor> parts;
  const auto add = [&](const at::Tensor& sums, double count) {
    parts.push_back(sums.detach().to(options).reshape({-1}));
    parts.push_back(torch::full({1}, count, options));
  };
  parts.push_back(torch::full({1}, lacks_place() ? 1.0 : 0.0, options));
  for (const Metric& metric : metrics_) {
    const auto mean = row.outcome.metrics.find(metric.name);
    const auto counts = row.outcome.counts.find(metric.name);
    if (metric.name == kLoss) {
      add(row.outcome.loss.detach().to(options) * samples, samples);
    } else if (!metric.is_count && mean != row.outcome.metrics.end()) {
      add(mean->second.detach().to(options) * samples, samples);
    } else if (metric.is_count && counts != row.outcome.counts.end() &&
               counts->second.counts.numel() == metric.size) {
      add(counts->second.counts, 1);
    } else {
      add(torch::zeros({metric.size}, options), 0);
    }
  }
  at::Tensor sums = torch::cat(parts);
  if (over_ranks_) world_.communicator().all_reduce(sums).wait();
  if (row.gradient_norm.defined()) {
    sums = torch::cat({sums, row.gradient_norm.detach().to(options).reshape({1})});
  }
  return sums;
}

// The copy runs behind the work that is already queued; nothing waits for it here.
StepLog::Copied StepLog::copied_to_host(const at::Tensor& numbers) {
  const c10::DeviceType type = numbers.device().type();
  Copied copied{torch::empty(numbers.sizes(), numbers.options().device(torch::kCPU).pinned_memory(true)),
                c10::Event(type)};
  copied.numbers.copy_(numbers, /*non_blocking=*/true);
  copied.computed.record(c10::impl::VirtualGuardImpl(type).getStream(numbers.device()));
  return copied;
}

double StepLog::memory_mib() const {
  if (world_.device().is_cpu()) return resident_bytes(statm_.get()) / kBytesPerMib;
  const auto stats = at::accelerator::getDeviceStats(world_.device().index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<double>(stats.allocated_bytes[kAll].current) / kBytesPerMib;
}

void StepLog::add(const Row& row) {
  note_metrics(row.outcome);
  // Over ranks all of them must know that one lacks a place.
  if (metrics_.empty() || (over_ranks_ ? lacked_place() : lacks_place())) make_places();
  Pending pending{.step = row.step};
  const bool on_host = row.outcome.loss.is_cpu();
  at::Tensor sums;
  if (on_host) {
    pending.sums = host_sums(row);
    if (pending.sums.front() > 0) {
      make_places();
      pending.sums = host_sums(row);
    }
  } else {
    sums = device_sums(row);
    if (over_ranks_) lacking_.emplace(copied_to_host(sums.narrow(0, 0, 1)));
  }
  if (!world_.is_main()) return;
  pending.metrics = metrics_;
  for (const Metric& metric : metrics_) {
    const auto counts = row.outcome.counts.find(metric.name);
    pending.counts.push_back(metric.is_count && counts != row.outcome.counts.end() ? counts->second
                                                                                   : MetricCounts());
  }
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - since_).count();
  if (row.learning_rate && row.with_rates) pending.known.emplace_back("learning_rate", *row.learning_rate);
  if (seconds > 0 && row.with_rates) {
    pending.known.emplace_back("samples_per_s",
                               (row.own_samples - own_samples_before_) * row.ranks / seconds);
  }
  pending.known.emplace_back("memory_mib", memory_mib());
  resume_clock(row.own_samples);
  if (!on_host) pending.copied.emplace(copied_to_host(sums));
  pending_.push_back(std::move(pending));
}

void StepLog::write(TrackerSet* trackers, bool all) {
  while (!pending_.empty()) {
    Pending& row = pending_.front();
    if (row.copied) {
      if (!all && !row.copied->computed.query()) return;
      row.copied->computed.synchronize();
      const double* const first = row.copied->numbers.const_data_ptr<double>();
      row.sums.assign(first, first + row.copied->numbers.numel());
    }
    if (trackers != nullptr) write_row(*trackers, row);
    pending_.pop_front();
  }
}

void StepLog::write_row(TrackerSet& trackers, const Pending& row) const {
  std::vector<std::pair<std::string, double>> values;
  size_t place = 1;  // after the number of ranks that lack a place
  for (size_t i = 0; i < row.metrics.size(); ++i) {
    const Metric& metric = row.metrics[i];
    const auto size = static_cast<size_t>(metric.size);
    const double count = row.sums[place + size];
    if (count > 0 && !metric.is_count) values.emplace_back("step_" + metric.name, row.sums[place] / count);
    if (const MetricCounts& counts = row.counts[i]; count > 0 && metric.is_count && counts.value) {
      const std::vector<double> numbers(&row.sums[place], &row.sums[place + size]);
      const at::Tensor sums = at::tensor(numbers, at::kDouble).reshape(counts.counts.sizes());
      values.emplace_back("step_" + metric.name, counts.value(sums));
    }
    place += size + 1;
  }
  if (place < row.sums.size()) values.emplace_back("grad_norm", row.sums[place]);
  values.insert(values.end(), row.known.begin(), row.known.end());
  std::vector<Scalar> scalars;
  for (const auto& [name, value] : values) scalars.push_back({name, value});
  trackers.write_scalars(scalars, row.step);
}

}  // namespace lockstep::train
