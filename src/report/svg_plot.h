#pragma once

#include <string>
#include <vector>

#include "report/chart.h"

namespace lockstep::report {

// An axis from low to high, with ticks at round numbers.
struct Ticks {
  double low = 0;
  double high = 1;
  std::vector<double> at;
  std::vector<std::string> labels;
};

// About `count` ticks, 1, 2 or 5 times a power of ten apart. is_tight: the axis ends at low and
// high, otherwise at the ticks around them. If low and high are equal, the axis is widened.
Ticks round_ticks(double low, double high, int count, bool is_tight);

// The chart as an SVG image for a paper: axes, ticks and legend, without scripts, in the reader's
// sans-serif font. x is drawn as it is, with the label chart.x_label.
std::string plot_svg(const Chart& chart);

}  // namespace lockstep::report
