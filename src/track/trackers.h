#pragma once

#include <lockstep/track.h>

#include <chrono>
#include <cstdint>
#include <memory>

// The factories of the four trackers, and what several of them share.
namespace lockstep::track {

struct MlflowSettings;

// Writes metrics.csv into options.folder: one row for each step, one column for each metric in
// the order of their first write, an empty field where a step has no value. Consecutive writes
// of the same step share its row. The first write of a metric rewrites the file with one more
// column, so pass new metrics in one call. NaN and infinities are "nan", "inf" and "-inf".
std::unique_ptr<Tracker> make_csv_tracker(const TrackerOptions& options);

// Writes metrics.jsonl into options.folder: one line with a JSON object for each write.
//   {"step":1,"time":1700000000.5,"train_loss":0.25}
//   {"step":1,"time":...,"histogram":"fc.weight","min":...,"buckets":[[1.0,1.1,3],...]}
//   {"step":1,"time":...,"text":"model","content":"..."}
//   {"time":...,"hyperparameters":{"lr":0.1},"final_metrics":{"loss":0.25}}
// "buckets" lists the non-empty buckets as [lower limit, upper limit, count].
std::unique_ptr<Tracker> make_jsonl_tracker(const TrackerOptions& options);

// Writes an event file for TensorBoard into options.folder. TensorBoard shows a folder as one
// run. A resumed run adds a file, whose first events make TensorBoard drop everything that older
// files have for resume_step and later.
std::unique_ptr<Tracker> make_tensorboard_tracker(const TrackerOptions& options);

// Sends a run to an MLflow server from a background thread. A write adds to a bounded queue and
// returns at once. While the server is unreachable the queue fills; writes beyond the bound are
// dropped, and so is each item that the server rejects. The first problem is logged as a
// warning, and close() logs how many items were dropped.
std::unique_ptr<Tracker> make_mlflow_tracker(const MlflowSettings& settings);

// The time stamps of TensorBoard's events and JSON lines (seconds) and of MLflow (milliseconds).
inline double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

inline int64_t milliseconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace lockstep::track
