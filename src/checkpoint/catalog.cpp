#include "checkpoint/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/folder.h"
#include "base/log.h"
#include "base/number.h"
#include "checkpoint/error.h"
#include "checkpoint/reader.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kStepPrefix = "step-";

// The step in the name of a folder; nullopt: not the name of a checkpoint.
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  // step_name(): leading zeros and no sign.
  const auto step = base::parse_integer(name.substr(kStepPrefix.size()));
  return step && *step >= 0 && step_name(*step) == name ? step : std::nullopt;
}

Entry entry_of(const std::filesystem::path& path, int64_t step) {
  Entry entry{.path = path, .step = step};
  try {
    const Reader reader(path);
    const Manifest& manifest = reader.manifest();
    entry.sequence = manifest.sequence;
    entry.bytes = manifest.total_bytes();
    entry.metric = manifest.metric;
    entry.metric_kind = manifest.metric_kind;
    entry.best = manifest.best;
    entry.time = manifest.time;
    if (manifest.step != step) {
      entry.problem = fmt::format("'{}' holds step {}", path.string(), manifest.step);
    }
  } catch (const Error& error) {
    entry.problem = error.what();
  }
  return entry;
}

}  // namespace

std::string step_name(int64_t step) { return fmt::format("{}{:010}", kStepPrefix, step); }

std::string replaced_name(const std::string& name) { return ".replaced-" + name; }

std::vector<Entry> list(const std::filesystem::path& folder) {
  std::vector<Entry> entries;
  std::error_code error;
  for (const base::FolderEntry& found : base::list_folder(folder, error)) {
    std::string name = found.path().filename().string();
    // A writer that died between its two renames left the old checkpoint under this name.
    const std::string hidden = replaced_name("");
    if (name.starts_with(hidden)) {
      name = name.substr(hidden.size());
      if (std::filesystem::exists(folder / name)) continue;
    }
    if (const auto step = step_of(name)) entries.push_back(entry_of(found.path(), *step));
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw CheckpointError(fmt::format("cannot read the folder '{}': {}", folder.string(), error.message()));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tuple(a.valid(), a.sequence, a.step) > std::tuple(b.valid(), b.sequence, b.step);
  });
  return entries;
}

std::optional<Entry> newest_valid(const std::filesystem::path& folder, Check check) {
  const std::vector<Entry> entries = list(folder);
  for (const Entry& entry : entries) {
    if (!entry.valid()) base::log_warning("checkpoint", "skipped a broken checkpoint: {}", entry.problem);
  }
  for (const Entry& entry : entries) {
    if (!entry.valid()) continue;
    try {
      if (check == Check::kChecksums) Reader(entry.path).verify();
      return entry;
    } catch (const Error& error) {
      base::log_warning("checkpoint", "skipped a broken checkpoint: {}", error.what());
    }
  }
  return std::nullopt;
}

std::vector<size_t> best_first(const std::vector<Entry>& newest_first, RotationRule::Best best,
                               const MetricKind& metric) {
  const bool by_mark = best == RotationRule::Best::kSaved;
  // A NaN has no place in the order.
  const auto counts = [&](const Entry& entry) {
    const bool same_kind = !metric.known() || !entry.metric_kind.known() || entry.metric_kind == metric;
    return entry.metric && std::isfinite(*entry.metric) && same_kind;
  };
  std::vector<size_t> order;
  for (size_t i = 0; i < newest_first.size(); ++i) {
    const Entry& entry = newest_first[i];
    if (entry.valid() && (counts(entry) || (by_mark && entry.best))) order.push_back(i);
  }
  // Stable: the newer of two equals stays in front.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Entry& x = newest_first[a];
    const Entry& y = newest_first[b];
    if (by_mark && (x.best || y.best)) return x.best && !y.best;
    return best == RotationRule::Best::kMax ? *x.metric > *y.metric : *x.metric < *y.metric;
  });
  return order;
}

std::vector<size_t> to_remove(const std::vector<Entry>& newest_first, const RotationRule& rule) {
  if (rule.keep_last <= 0) return {};
  std::vector<size_t> old;
  int valid = 0;
  for (size_t i = 0; i < newest_first.size(); ++i) {
    if (newest_first[i].valid() && valid++ >= rule.keep_last) old.push_back(i);
  }
  std::vector<size_t> best = best_first(newest_first, rule.best, rule.metric);
  best.resize(std::min(best.size(), static_cast<size_t>(std::max(rule.keep_best, 0))));
  std::erase_if(old, [&](size_t i) { return std::find(best.begin(), best.end(), i) != best.end(); });
  return old;
}

}  // namespace lockstep::checkpoint
