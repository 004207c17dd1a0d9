#pragma once

// Writes what a run measures: scalars, hyperparameters, histograms, images and text, to CSV, JSON
// lines, TensorBoard, MLflow, or a tracker of your own. The trainer opens the trackers that
// TrainConfig::tracking_tool names; Trainer::trackers() gives access to them. Does not need LibTorch.
//
// Example:
//
//   if (world.is_main()) {
//     const auto tracker = lockstep::make_tracker("csv", {.folder = "metrics"});
//     const lockstep::Scalar accuracy{"accuracy", 0.9};
//     tracker->write_scalars({&accuracy, 1}, /*step=*/10);
//     tracker->close(lockstep::RunStatus::kFinished);
//   }
//
// More: docs/tracking.md

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

// The value of a metric at one step. NaN and infinities are written like other values.
struct Scalar {
  std::string_view name;
  double value = 0;
};

using HyperparameterValue = std::variant<bool, int64_t, double, std::string>;
using Hyperparameters = std::map<std::string, HyperparameterValue>;
// The final numbers of a run, for example the last loss and the best accuracy.
using FinalMetrics = std::map<std::string, double>;

// A histogram of values. The buckets are those of torch.utils.tensorboard's
// add_histogram(bins="tensorflow"): their limits grow by ten percent from 1e-12 to 1e20, on both sides
// of zero, and only those around the values are kept.
struct Histogram {
  double min = 0;
  double max = 0;
  double count = 0;
  double sum = 0;
  double sum_squares = 0;
  // bucket_counts[i] values are below bucket_limits[i] and not below the limit before it. Never empty.
  // NaN, infinities and values beyond 1e20 are in no bucket; they change the fields above only.
  std::vector<double> bucket_limits;
  std::vector<double> bucket_counts;

  static Histogram of(std::span<const double> values);
  static Histogram of(std::span<const float> values);
};

// Rows from the top, pixels from the left, the channels of a pixel together: 1 (gray), 3 (RGB) or 4
// (RGBA) bytes for each pixel.
struct Image {
  int height = 0;
  int width = 0;
  int channels = 3;
  std::vector<uint8_t> pixels;
};

// A module of a model, for example "blocks/0/conv".
struct GraphNode {
  std::string name;  // '/' separates levels; the first word is the model
  std::string kind;  // "Conv2d"
  // Names of the modules whose output it uses, as far as they are known.
  std::vector<std::string> inputs = {};
  std::string description = {};  // "Conv2d(3, 64, kernel_size=[3, 3])"
  int64_t parameters = 0;        // its own, without those of modules below it
};
using Graph = std::vector<GraphNode>;

// kInterrupted: the run will resume later.
enum class RunStatus { kFinished, kFailed, kInterrupted };

// Writes what a training run measures. A subclass implements one tool. Functions for which a tool has
// no place do nothing by default. One thread at a time. Only close() waits for a network. A call that
// cannot write throws an Error, and what was written before stays readable; a tracker that writes in
// the background reports its failure once, by a warning.
class Tracker {
 public:
  Tracker() = default;
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;
  // A tracker that was not closed closes as a failed run, and logs errors.
  virtual ~Tracker() = default;

  // The name that make_tracker() knows.
  virtual std::string_view name() const = 0;

  virtual void write_scalars(std::span<const Scalar> scalars, int64_t step) = 0;
  // Called at the start of a run without metrics, so that a run that is killed has hyperparameters too,
  // and at its end or interruption with the final metrics. The parameters are the same in both calls.
  virtual void write_hyperparameters(const Hyperparameters& parameters, const FinalMetrics& metrics) {}
  virtual void write_histogram(std::string_view name, const Histogram& histogram, int64_t step) {}
  // ConfigError: the number of pixels does not match the size.
  virtual void write_image(std::string_view name, const Image& image, int64_t step) {}
  // UTF-8, for example the description of the model or the resolved configuration.
  virtual void write_text(std::string_view name, std::string_view text, int64_t step) {}
  // The modules of the model; once for each run.
  virtual void write_graph(const Graph& graph) {}
  // Keeps a copy of a file or folder with the run, under its last name. It is read in the background:
  // do not change it before close().
  virtual void log_artifact(const std::filesystem::path& path) {}

  // Asks the operating system to write everything to the disk.
  virtual void flush() {}
  // Finishes the run; nothing may be written after it. Waits for a server, if there is one, for at most
  // TrackerOptions::close_timeout; if a finished run has files to send, until the server has accepted
  // nothing for that time. Later calls do nothing.
  virtual void close(RunStatus status) = 0;
};

struct TrackerOptions {
  // The folder of the run; created if it does not exist.
  std::filesystem::path folder;
  // The first step that a resumed run writes: records of the earlier run at this step and later are
  // removed. Unset: a new run; files of another run in the folder are kept beside the new ones
  // (metrics.1.csv).
  std::optional<int64_t> resume_step;
  // For tools that show names. Empty: the tool's own name.
  std::string run_name;
  // How long close() waits for a server.
  std::chrono::milliseconds close_timeout = std::chrono::seconds(10);
};

// tensorboard, mlflow, csv and jsonl.
std::span<const std::string_view> tracker_names();
// ConfigError: there is no tracker with this name; it lists the names.
void check_tracker_name(std::string_view name);

// Opens a tracker; docs/tracking.md describes the files of each. Does not connect to a server.
// ConfigError: an unknown name, a folder that cannot be written, or a wrong variable.
std::unique_ptr<Tracker> make_tracker(std::string_view name, const TrackerOptions& options);
// The same with these environment variables instead of those of the process.
std::unique_ptr<Tracker> make_tracker(std::string_view name, const TrackerOptions& options,
                                      const base::Environment& environment);

// Several trackers as one. Writing never throws, so a full disk does not end a training: the first
// failed write of a tracker is reported by a warning with the tracker's name and the reason, later
// failures are only counted. Every write is tried again, so a disk that has space again is used again;
// close() reports how many writes were lost. One thread at a time; owns its trackers.
class TrackerSet {
 public:
  TrackerSet() = default;
  TrackerSet(TrackerSet&&) = default;
  TrackerSet& operator=(TrackerSet&&) = delete;
  // Closes trackers that were not closed, as a failed run.
  ~TrackerSet();

  // Opens trackers by name. Unlike writing, opening throws, because the user is still present.
  // ConfigError: as make_tracker(), or a name that is given twice.
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
