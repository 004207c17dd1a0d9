#pragma once

#include <string>
#include <vector>

#include "report/run.h"

namespace lockstep::report {

// One line of what came out of a run.
struct Fact {
  std::string label;
  std::string value;
  std::string detail;  // said smaller; may be empty
};

// What is known of: loss, accuracy, epochs, steps, speed, duration, ranks. Facts that a run
// does not tell are left out.
std::vector<Fact> facts_of(const Run& run);

// Samples/s that half of the run's rows reach; 0 where it tells none. Unlike a mean it
// does not move with a first epoch that warms up, or with one that was disturbed.
double median_speed(const Run& run);

// Five significant digits at most, without an exponent where it can be read without one.
std::string number_text(double value);
// "42.1 s", "3 min 20 s", "2 h 05 min".
std::string duration_text(double seconds);

}  // namespace lockstep::report
