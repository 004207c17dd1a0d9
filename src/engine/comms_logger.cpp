#include "engine/comms_logger.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "base/size_text.h"
#include "deepspeed/comms_names.h"
#include "engine/rank_outcome.h"

namespace lockstep::engine {
namespace {

constexpr auto kCommsComponent = "engine";

// Without the tenth at either end.
double trimmed_mean(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  const auto cut = static_cast<std::ptrdiff_t>(values.size() / 10);
  const auto begin = values.begin() + cut;
  const auto end = values.end() - cut;
  return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
}

double total(const std::vector<float>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// Gigabits a second, as DeepSpeed has it.
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
  const std::lock_guard lock(mutex_);
  phase_ = phase;
}

bool CommsLogger::is_wanted(std::string_view operation) const {
  if (options_.prof_all) return true;
  return std::any_of(options_.prof_ops.begin(), options_.prof_ops.end(),
                     [&](const std::string& name) { return deepspeed::operation_of(name) == operation; });
}

void CommsLogger::called(const comm::Call& call) {
  if (!is_wanted(call.operation)) return;
  const std::lock_guard lock(mutex_);
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
  const std::lock_guard lock(mutex_);
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
  for (const Json& outcome : outcomes_of_all_ranks(group, [&] { return mine; })) {
    for (const Json& row : outcome.at("result")) {
      const auto times = row.at(2).get<std::vector<float>>();
      const auto [at, is_first] = least.try_emplace({row.at(0).text(), row.at(1).get<int64_t>()}, times);
      if (is_first) continue;
      // Ranks that called it differently often have only the first calls in common.
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

}  // namespace lockstep::engine
