#include "report/svg_axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::report {
namespace {

double round_spacing(double range, int count) {
  const double raw = range / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1, 2, 5}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

// As many decimals as the spacing needs, the same for all marks.
std::string label_of(double value, double spacing, double greatest) {
  if (greatest >= 1e7 || greatest < 1e-3) return fmt::format("{:.3g}", value);
  const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(spacing) + 1e-9)), 0, 12);
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

Ticks round_ticks(double low, double high, int count, bool is_tight) {
  if (!(high - low > std::fabs(high) * 1e-12)) {
    const double margin = high == 0 ? 1 : std::fabs(high) * 0.1;
    low -= margin;
    high += margin;
  }
  const double spacing = round_spacing(high - low, count);
  Ticks ticks{.low = low, .high = high, .at = {}, .labels = {}};
  if (!is_tight) {
    ticks.low = std::floor(low / spacing + 1e-9) * spacing;
    ticks.high = std::ceil(high / spacing - 1e-9) * spacing;
  }
  const double first = std::ceil(ticks.low / spacing - 1e-9);
  const double greatest = std::max(std::fabs(ticks.low), std::fabs(ticks.high));
  for (double i = 0; (first + i) * spacing <= ticks.high + spacing * 1e-9; ++i) {
    const double at = (first + i) * spacing;
    ticks.at.push_back(at);
    ticks.labels.push_back(label_of(at == 0 ? 0 : at, spacing, greatest));
  }
  return ticks;
}

}  // namespace lockstep::report
