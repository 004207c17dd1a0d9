#pragma once

#include <string>

#include "report/chart.h"

namespace lockstep::report {

// The chart as an SVG picture for a paper: axes, marks, legend, no script, no font but the
// reader's sans-serif. x is drawn as it is, labelled chart.x_label.
std::string plot_svg(const Chart& chart);

}  // namespace lockstep::report
