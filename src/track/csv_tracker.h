#pragma once

#include <lockstep/tracker.h>

#include <memory>

namespace lockstep::track {

// Writes metrics.csv into options.folder: a row for each step, a column for each metric
// in the order in which they came, an empty field where a step has no value. Several
// writes of one step in a row share its row. A write with metrics that are new rewrites
// the file with more columns: new ones had better come together. NaN and infinities are
// "nan", "inf" and "-inf".
std::unique_ptr<Tracker> make_csv_tracker(const TrackerOptions& options);

}  // namespace lockstep::track
