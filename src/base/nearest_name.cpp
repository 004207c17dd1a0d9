#include "base/nearest_name.h"

#include <algorithm>
#include <numeric>

namespace lockstep::base {
namespace {

// The number of letters to insert, remove or replace.
size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view given, const std::vector<std::string>& names) {
  std::optional<std::string> nearest;
  size_t fewest = std::max<size_t>(2, given.size() / 3) + 1;
  for (const std::string& name : names) {
    const size_t edits = edits_between(given, name);
    if (edits >= fewest || edits >= name.size()) continue;
    fewest = edits;
    nearest = name;
  }
  return nearest;
}

}  // namespace lockstep::base
