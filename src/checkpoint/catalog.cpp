#include "checkpoint/catalog.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/number.h"
#include "checkpoint/error.h"
#include "checkpoint/reader.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kStepPrefix = "step-";

// The step that a folder is named after; nullopt: not a checkpoint's name.
std::optional<int64_t> step_of(std::string_view name) {
  if (name.substr(0, kStepPrefix.size()) != kStepPrefix) return std::nullopt;
  // Leading zeros, no sign.
  const auto step = base::parse_integer(name.substr(kStepPrefix.size()));
  return step && *step >= 0 && step_name(*step) == name ? step : std::nullopt;
}

Entry describe(const std::filesystem::path& path, int64_t step) {
  Entry entry{.path = path, .step = step};
  try {
    const Reader reader(path);
    const Manifest& manifest = reader.manifest();
    entry.sequence = manifest.sequence;
    entry.bytes = manifest.total_bytes();
    entry.metric = manifest.metric;
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
  for (std::filesystem::directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error)) {
    std::string name = next->path().filename().string();
    // A writer that died between its two renames left the old one under this name.
    const std::string hidden = replaced_name("");
    if (name.rfind(hidden, 0) == 0) {
      name = name.substr(hidden.size());
      if (std::filesystem::exists(folder / name)) continue;
    }
    if (const auto step = step_of(name)) entries.push_back(describe(next->path(), *step));
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

}  // namespace lockstep::checkpoint
