#pragma once

#include <string>
#include <vector>

namespace lockstep::report {

// An axis from low to high with marks at round numbers.
struct Ticks {
  double low = 0;
  double high = 1;
  std::vector<double> at;
  std::vector<std::string> labels;
};

// About `count` marks, 1, 2 or 5 times a power of ten apart. With is_tight the axis ends
// where the values do, else at the marks around them. Equal ends are spread.
Ticks round_ticks(double low, double high, int count, bool is_tight);

}  // namespace lockstep::report
