#pragma once

#include <lockstep/tracker.h>

#include <memory>

namespace lockstep::track {

// Writes metrics.jsonl into options.folder: a JSON object on a line for each write.
//   {"step":1,"time":1700000000.5,"train_loss":0.25}
//   {"step":1,"time":...,"histogram":"fc.weight","min":...,"buckets":[[1.0,1.1,3],...]}
//   {"step":1,"time":...,"text":"model","content":"..."}
//   {"time":...,"hyperparameters":{"lr":0.1},"final_metrics":{"loss":0.25}}
// The buckets of a histogram that hold values: from, to, how many.
std::unique_ptr<Tracker> make_jsonl_tracker(const TrackerOptions& options);

}  // namespace lockstep::track
