#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/run.h"
#include "report/thinned_table.h"

namespace lockstep::report {

enum class Dash { kSolid, kDashed, kDotted };

struct Series {
  std::string label;
  size_t run = 0;     // index of its run
  size_t colour = 0;  // index into the palette, which repeats
  Dash dash = Dash::kSolid;
  std::vector<Point> points;
  bool thin = false;  // many values that scatter
};

// The data of one chart. The page's script and plot_svg() draw it.
struct Chart {
  enum class Kind {
    kLines,
    kStack,  // stacked areas
    kBars,   // x is an index into categories; series are stacked
  };
  // The meaning of x. The page can also show steps as epochs or hours.
  enum class Axis { kStep, kSeconds, kNumber, kCategory };

  std::string id;  // letters, digits and '-': usable as a file name
  std::string title;
  std::string y_label;
  std::string x_label = {};  // kNumber only
  Kind kind = Kind::kLines;
  Axis axis = Axis::kStep;
  bool from_zero = false;   // y begins at 0
  bool has_points = false;  // each point is marked; for few points
  std::vector<std::string> categories = {};
  std::vector<Series> series = {};
};

// The most charts for metrics that have no fixed chart.
inline constexpr size_t kMaxOtherCharts = 24;
// The most GPUs of one run in a chart.
inline constexpr size_t kMaxGpuLines = 16;

// The charts of one run, or of several runs in the same charts: loss, accuracy and the other
// metrics of training and evaluation, learning rate, samples/s, parts of a step, GPUs, and the
// remaining metrics. Charts without values are left out. `remarks` gets what is beyond the limits.
std::vector<Chart> charts_of(const std::vector<Run>& runs, std::vector<std::string>& remarks);

}  // namespace lockstep::report
