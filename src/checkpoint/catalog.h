#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/metric_kind.h"

namespace lockstep::checkpoint {

// The checkpoints in a folder. These functions take no lock and change nothing: any rank and any tool
// may call them while a run writes.

// "step-0000001234".
std::string step_name(int64_t step);
// The name of an old checkpoint while a new one of this name replaces it.
std::string replaced_name(const std::string& name);

struct Entry {
  std::filesystem::path path;
  int64_t step = 0;
  int64_t sequence = -1;
  int64_t bytes = 0;
  std::optional<double> metric = {};
  MetricKind metric_kind = {};
  bool best = false;  // the best when it was saved, by the trainer's criterion
  std::string time = {};
  // Why it cannot be used; empty: the manifest and the sizes of the files are right.
  std::string problem = {};

  bool valid() const { return problem.empty(); }
};

// The checkpoints of a folder: newest first, broken ones last. A missing folder has none.
std::vector<Entry> list(const std::filesystem::path& folder);

enum class Check {
  kStructure,  // manifest and sizes of files: milliseconds
  kChecksums,  // every byte is read
};

// The newest checkpoint that passes the check. Logs a warning for each newer one that does not.
std::optional<Entry> newest_valid(const std::filesystem::path& folder, Check check = Check::kChecksums);

// --- which checkpoints to keep ---

struct RotationRule {
  int keep_last = 3;  // the newest ones; 0: all
  int keep_best = 1;  // in addition to the newest; 0: none
  // kSaved: first those marked as the best when they were saved, newest first, then all others,
  // lowest metric first. kMin, kMax: only by the metric.
  enum class Best { kSaved, kMin, kMax } best = Best::kSaved;
  // The metric of another kind does not count. Unknown, here or in an entry: it counts.
  MetricKind metric = {};
};

// Indices of the valid entries with a mark or a metric of this kind, the best first. Of two equal ones the
// newer is better.
std::vector<size_t> best_first(const std::vector<Entry>& newest_first, RotationRule::Best best,
                               const MetricKind& metric = {});

// Indices of the entries to remove, from the order of list(). Broken checkpoints are neither counted
// as kept nor removed: the user may want to examine them.
std::vector<size_t> to_remove(const std::vector<Entry>& newest_first, const RotationRule& rule);

}  // namespace lockstep::checkpoint
