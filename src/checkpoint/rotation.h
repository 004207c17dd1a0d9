#pragma once

#include <cstddef>
#include <vector>

#include "checkpoint/catalog.h"

namespace lockstep::checkpoint {

struct RotationRule {
  int keep_last = 3;  // the newest ones; 0: all
  int keep_best = 1;  // by metric, beside the newest; 0: none
  enum class Best { kMin, kMax } best = Best::kMin;
};

// Indices of the entries, which are newest first as list() gives them, that need not stay.
// Of equal metrics the newer one is the better; a broken checkpoint is never among the
// kept nor among those to remove: it is somebody's evidence.
std::vector<size_t> to_remove(const std::vector<Entry>& newest_first, const RotationRule& rule);

}  // namespace lockstep::checkpoint
