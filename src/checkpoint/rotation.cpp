#include "checkpoint/rotation.h"

#include <algorithm>

namespace lockstep::checkpoint {

std::vector<size_t> best_first(const std::vector<Entry>& newest_first, RotationRule::Best best) {
  const bool by_mark = best == RotationRule::Best::kSaved;
  std::vector<size_t> order;
  for (size_t i = 0; i < newest_first.size(); ++i) {
    const Entry& entry = newest_first[i];
    if (entry.valid() && (entry.metric || (by_mark && entry.best))) order.push_back(i);
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
  std::vector<size_t> best = best_first(newest_first, rule.best);
  best.resize(std::min(best.size(), static_cast<size_t>(std::max(rule.keep_best, 0))));
  std::erase_if(old, [&](size_t i) { return std::find(best.begin(), best.end(), i) != best.end(); });
  return old;
}

}  // namespace lockstep::checkpoint
