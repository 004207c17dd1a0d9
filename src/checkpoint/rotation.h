#pragma once

#include <cstddef>
#include <vector>

#include "checkpoint/catalog.h"

namespace lockstep::checkpoint {

struct RotationRule {
  int keep_last = 3;  // the newest ones; 0: all
  int keep_best = 1;  // beside the newest; 0: none
  // kSaved: those that were marked as the best when they were saved, the newest first, then all
  // others with the least metric first. kMin, kMax: by metric alone.
  enum class Best { kSaved, kMin, kMax } best = Best::kSaved;
};

// Indices of the valid entries with a mark or a metric, the best one first. Of equal ones the
// newer is the better.
std::vector<size_t> best_first(const std::vector<Entry>& newest_first, RotationRule::Best best);

// Indices of the entries, which are newest first as list() gives them, that need not stay.
// A broken checkpoint is never among the
// kept nor among those to remove: it is somebody's evidence.
std::vector<size_t> to_remove(const std::vector<Entry>& newest_first, const RotationRule& rule);

}  // namespace lockstep::checkpoint
