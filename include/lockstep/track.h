#pragma once

// Where a run's metrics go: CSV, JSON lines, TensorBoard, MLflow, or a tracker of the program.
//
//   const lockstep::Scalar accuracy{"accuracy", 0.9};
//   trainer.trackers().write_scalars({&accuracy, 1}, step);

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep {

namespace base {
class Environment;
}

// A metric's value at one step. NaN and infinities are values like any other.
struct Scalar {
  std::string_view name;
  double value = 0;
};

using HyperparameterValue = std::variant<bool, int64_t, double, std::string>;
using Hyperparameters = std::map<std::string, HyperparameterValue>;
// The numbers that a run is judged by: the final loss, the best accuracy.
using FinalMetrics = std::map<std::string, double>;

// How many values lie where. The buckets are those of torch.utils.tensorboard's
// add_histogram(bins="tensorflow"): their limits grow by a tenth from 1e-12 to 1e20,
// on both sides of zero, and only those around the values are kept.
struct Histogram {
  double min = 0;
  double max = 0;
  double count = 0;
  double sum = 0;
  double sum_squares = 0;
  // bucket_counts[i] values lie below bucket_limits[i] and not below the limit before.
  // Never empty. NaN, infinities and values beyond 1e20 are in no bucket, but show in
  // the fields above.
  std::vector<double> bucket_limits;
  std::vector<double> bucket_counts;

  static Histogram of(std::span<const double> values);
  static Histogram of(std::span<const float> values);
};

// Rows from the top, pixels from the left, channels together: 1 (gray), 3 (RGB) or
// 4 (RGBA) bytes a pixel.
struct Image {
  int height = 0;
  int width = 0;
  int channels = 3;
  std::vector<uint8_t> pixels;
};

// A part of a model: "blocks/0/conv".
struct GraphNode {
  std::string name;  // '/' goes down; the model itself is the first word
  std::string kind;  // "Conv2d"
  // Names of the parts whose output it takes, as far as they are known.
  std::vector<std::string> inputs = {};
  std::string description = {};  // "Conv2d(3, 64, kernel_size=[3, 3])"
  int64_t parameters = 0;        // its own, without those of the parts below it
};
using Graph = std::vector<GraphNode>;

// Interrupted: to go on later.
enum class RunStatus { kFinished, kFailed, kInterrupted };

// Writes what a training run measures. What a tool has no place for is dropped
// silently: those functions do nothing by default. One thread at a time. No call waits
// for a network, except close(). A call that cannot write throws an Error, and what was
// written before stays readable; a tracker that writes in the background says its
// failure itself, once, by a warning.
class Tracker {
 public:
  Tracker() = default;
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;
  // A tracker that was not closed closes as a failed run and logs what goes wrong.
  virtual ~Tracker() = default;

  // As make_tracker() knows it.
  virtual std::string_view name() const = 0;

  virtual void write_scalars(std::span<const Scalar> scalars, int64_t step) = 0;
  // At the start of a run, without metrics, so that a run that is killed has them too; and at
  // its end, or when it is interrupted, with the final metrics. The parameters stay the same.
  virtual void write_hyperparameters(const Hyperparameters& parameters, const FinalMetrics& metrics) {}
  virtual void write_histogram(std::string_view name, const Histogram& histogram, int64_t step) {}
  // ConfigError: the pixels do not fit the size.
  virtual void write_image(std::string_view name, const Image& image, int64_t step) {}
  // UTF-8: the model's description, the resolved configuration.
  virtual void write_text(std::string_view name, std::string_view text, int64_t step) {}
  // Once a run: what the model is made of.
  virtual void write_graph(const Graph& graph) {}
  // Keeps a copy of a file or of a folder with the run, under its last name. It is read
  // in the background: it must stay as it is until close().
  virtual void log_artifact(const std::filesystem::path& path) {}

  // Asks the system to put what was written onto the disk.
  virtual void flush() {}
  // Finishes the run; nothing may be written after it. Waits for a server, if there is
  // one, for at most TrackerOptions::close_timeout; where a finished run has files to send, until
  // the server has taken nothing of them for so long. Once; later calls do nothing.
  virtual void close(RunStatus status) = 0;
};

struct TrackerOptions {
  // The run's folder, made when it is not there.
  std::filesystem::path folder;
  // The first step that a resumed run writes: what the run before it wrote at this step
  // and later is dropped. Unset: a new run; files of another run in the folder are kept
  // beside the new ones (metrics.1.csv).
  std::optional<int64_t> resume_step;
  // For tools that show names; empty: theirs.
  std::string run_name;
  // How long close() waits for a server.
  std::chrono::milliseconds close_timeout = std::chrono::seconds(10);
};

// tensorboard, mlflow, csv, jsonl.
std::span<const std::string_view> tracker_names();
// ConfigError, with all names, unless it is one of them.
void check_tracker_name(std::string_view name);

// Opens a tracker; docs/tracking.md says what each one writes where. ConfigError: an
// unknown name, a folder that cannot be written, a variable that is wrong. A server is
// not asked here.
std::unique_ptr<Tracker> make_tracker(std::string_view name, const TrackerOptions& options);
// The same with these environment variables instead of the process's.
std::unique_ptr<Tracker> make_tracker(std::string_view name, const TrackerOptions& options,
                                      const base::Environment& environment);

// Several trackers as one. Nothing here throws or ends a training: the first write of a
// tracker that fails is said by a warning with the tracker's name and the reason, later
// failures of it are counted in silence. Each write is tried anew, so that a disk that
// has space again is written again; what was lost in between is told at close().
// One thread at a time; owns its trackers.
class TrackerSet {
 public:
  TrackerSet() = default;
  TrackerSet(TrackerSet&&) = default;
  TrackerSet& operator=(TrackerSet&&) = delete;
  // Closes as a failed run what was not closed.
  ~TrackerSet();

  // Opens trackers by name. Unlike writing, opening throws: the user still looks on.
  // ConfigError as of make_tracker(), or a name that comes twice.
  static TrackerSet open(std::span<const std::string> names, const TrackerOptions& options);

  void add(std::unique_ptr<Tracker> tracker);
  bool empty() const { return members_.empty(); }

  void write_scalars(std::span<const Scalar> scalars, int64_t step);
  void write_hyperparameters(const Hyperparameters& parameters, const FinalMetrics& metrics);
  void write_histogram(std::string_view name, const Histogram& histogram, int64_t step);
  void write_image(std::string_view name, const Image& image, int64_t step);
  void write_text(std::string_view name, std::string_view text, int64_t step);
  void write_graph(const Graph& graph);
  void log_artifact(const std::filesystem::path& path);
  void flush();
  void close(RunStatus status);

 private:
  struct Member {
    std::unique_ptr<Tracker> tracker;
    int64_t lost_writes = 0;
  };
  void for_each(const std::function<void(Tracker&)>& write);

  std::vector<Member> members_;
};

}  // namespace lockstep
