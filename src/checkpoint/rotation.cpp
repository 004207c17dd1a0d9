#include "checkpoint/rotation.h"

#include <algorithm>

namespace lockstep::checkpoint {

std::vector<size_t> to_remove(const std::vector<Entry>& newest_first, const RotationRule& rule) {
  if (rule.keep_last <= 0) return {};
  std::vector<size_t> old;
  std::vector<size_t> best;
  int valid = 0;
  for (size_t i = 0; i < newest_first.size(); ++i) {
    if (!newest_first[i].valid()) continue;
    if (newest_first[i].metric) best.push_back(i);
    if (valid++ >= rule.keep_last) old.push_back(i);
  }
  // Stable: the newer of two equals stays in front.
  std::stable_sort(best.begin(), best.end(), [&](size_t a, size_t b) {
    const double x = *newest_first[a].metric;
    const double y = *newest_first[b].metric;
    return rule.best == RotationRule::Best::kMin ? x < y : x > y;
  });
  best.resize(std::min(best.size(), static_cast<size_t>(std::max(rule.keep_best, 0))));
  std::erase_if(old, [&](size_t i) { return std::find(best.begin(), best.end(), i) != best.end(); });
  return old;
}

}  // namespace lockstep::checkpoint
