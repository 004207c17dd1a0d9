#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <lockstep/trainer.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace lockstep {
class TrackerSet;
class World;
}  // namespace lockstep

namespace lockstep::train {

// The number of steps between two rows of a training with this many steps in an epoch; 0: no rows.
int64_t steps_between_rows(const TrainConfig& config, int64_t steps_per_epoch);

// Rows of single steps for the trackers: step_loss, step_ and the metrics, learning_rate, grad_norm,
// samples_per_s, memory_mib. Loss and metrics are those of the step over all ranks (of rank 0, if
// config.all_reduce_metrics is off). Only the steps with a row cost anything. On a GPU the host does not
// wait for a row: it is written when the device has computed it.
//
// A metric may appear in any row, on any rank. Over several ranks on GPUs its first row lacks it: the ranks
// learn of it from that row.
//
// Collective: all ranks make the same calls. One thread.
class StepLog {
 public:
  StepLog(const World& world, const TrainConfig& config, int64_t steps_per_epoch);

  // Whether this step has a row.
  bool due(int64_t step) const { return every_ > 0 && step % every_ == 0; }

  // Training begins, or continues after something that is no training: time and samples count from here.
  // `own_samples`: as Row has them.
  void resume_clock(double own_samples) {
    since_ = std::chrono::steady_clock::now();
    own_samples_before_ = own_samples;
  }

  struct Row {
    int64_t step = 0;
    const LossResult& outcome;
    int64_t samples = 0;                  // of the step on this rank
    double own_samples = 0;               // of this training so far, on this rank
    int ranks = 1;                        // that have as many samples of their own
    const at::Tensor& gradient_norm;      // undefined: none
    std::optional<double> learning_rate;  // nullopt: there is no optimizer with one
    bool with_rates = true;  // false: learning rate and samples/s are in the row of the epoch, which follows
  };
  // Adds the row of a step. Collective.
  void add(const Row& row);
  // Writes the rows that the device has computed; `all`: waits for the others. `trackers` is null on ranks
  // that write nothing.
  void write(TrackerSet* trackers, bool all);

 private:
  // A value of a row: its place in the sums of all ranks.
  struct Metric {
    std::string name;
    int64_t size = 1;       // numbers of its sum; counts may have several
    bool is_count = false;  // not divided by samples
  };
  // Numbers of a device in host memory, once `computed` has happened.
  struct Copied {
    at::Tensor numbers;
    c10::Event computed;
  };
  struct Pending {
    int64_t step = 0;
    std::vector<Metric> metrics = {};
    std::vector<std::pair<std::string, double>> known = {};  // on the host when the step ended
    std::vector<double> sums = {};          // as host_sums() describes, in the order of `metrics`
    std::vector<MetricCounts> counts = {};  // by metric; without a function: a mean
    std::optional<Copied> copied = {};      // on a GPU: becomes `sums`
  };

  // Adds the metrics of this outcome to `own_`.
  void note_metrics(const LossResult& outcome);
  // Whether the sums have no place for one of this rank's metrics.
  bool lacks_place() const;
  // Gives all metrics that the ranks have seen a place in the sums. Collective.
  void make_places();
  // Whether a rank lacked a place when the last row was computed on the device.
  bool lacked_place();
  // The number of ranks that lack a place; for each metric its sum over samples and their number, or its
  // counts and the number of ranks that have them; all of all ranks. Then the gradient norm. Host tensors do
  // not go through kernels: they cost more than a layer of a small model. Collective.
  std::vector<double> host_sums(const Row& row) const;
  at::Tensor device_sums(const Row& row) const;
  static Copied copied_to_host(const at::Tensor& numbers);
  void write_row(TrackerSet& trackers, const Pending& row) const;
  double memory_mib() const;

  const World& world_;
  const int64_t every_;
  const bool over_ranks_;
  const base::UniqueFd statm_;
  std::map<std::string, Metric> own_;  // all that this rank has seen
  std::vector<Metric> metrics_;        // with a place in the sums: the same on all ranks
  std::optional<Copied> lacking_;      // on a GPU: the number of ranks that lacked a place in the last row
  std::deque<Pending> pending_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  double own_samples_before_ = 0;
};

}  // namespace lockstep::train
