#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/thinned_table.h"

namespace lockstep::report {

enum class Dash { kSolid, kDashed, kDotted };

struct Series {
  std::string label;
  size_t run = 0;     // index of its run
  size_t colour = 0;  // index into the palette, which repeats
  Dash dash = Dash::kSolid;
  std::vector<Point> points;
};

// One picture, whatever draws it: the page's script or the SVG plotter.
struct Chart {
  enum class Kind {
    kLines,
    kStack,  // areas above each other
    kBars,   // x is an index into categories; series are stacked
  };
  // What x is. Steps can also be shown as epochs or hours.
  enum class Axis { kStep, kSeconds, kNumber, kCategory };

  std::string id;  // letters, digits and '-': a file's name
  std::string title;
  std::string y_label;
  std::string x_label = {};  // kNumber only
  Kind kind = Kind::kLines;
  Axis axis = Axis::kStep;
  bool from_zero = false;   // y begins at 0
  bool has_points = false;  // each point is marked: there are few
  std::vector<std::string> categories = {};
  std::vector<Series> series = {};
};

}  // namespace lockstep::report
