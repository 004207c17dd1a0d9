#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "track/mlflow_api.h"

namespace lockstep::track {

// The queue between a training and an MLflow server, and the thread that empties it.
// All calls are for one thread and return at once, except close().
class MlflowSender {
 public:
  // What may wait; more is lost.
  static constexpr size_t kMaxWaitingMetrics = 100'000;
  static constexpr size_t kMaxWaitingArtifacts = 10'000;
  static constexpr size_t kMaxWaitingBytes = size_t{256} << 20U;

  explicit MlflowSender(const MlflowSettings& settings);
  // Closes as a failed run.
  ~MlflowSender();

  void put(std::vector<MlflowMetric> metrics);
  void put(std::vector<MlflowParameter> parameters);
  void put(MlflowArtifact artifact);

  // Sends what waits, tells the server how the run ended, and ends the thread: within
  // settings.close_timeout and about a second. Files of a finished run take longer, as long as
  // the server takes more of them within close_timeout; a run that failed or was interrupted has
  // no time for that. Once; later calls do nothing.
  void close(RunStatus status);

 private:
  // The thread: all these run there, without the mutex.
  void run();
  void open_run();
  // Waits for something to send and sends it; false once the run is closed.
  bool send_next();
  template <typename Item>
  bool send_batch(std::deque<Item>& queue, size_t limit, void (MlflowApi::*send)(std::span<const Item>));
  template <typename Item>
  void send_or_halve(std::span<const Item> items, void (MlflowApi::*send)(std::span<const Item>));
  bool send_artifact();
  // Waits a while; false: there is no time left to try again.
  bool wait_after_failure();
  void lose(const std::string& reason);
  void complain(std::string_view what, std::string_view reason);

  // REQUIRES: mutex_ is held.
  size_t waiting() const { return metrics_.size() + parameters_.size() + artifacts_.size(); }
  uintmax_t waiting_file_bytes() const;
  void report_loss();

  const MlflowSettings settings_;

  // The thread's own; give_up_at() is for all.
  MlflowApi api_;
  int failures_ = 0;  // since something was sent
  int closing_failures_ = 0;
  bool has_complained_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_. Only the thread removes, from the front.
  std::deque<MlflowMetric> metrics_;
  std::deque<MlflowParameter> parameters_;
  std::deque<MlflowArtifact> artifacts_;
  size_t artifact_bytes_ = 0;
  int64_t lost_ = 0;
  bool refused_ = false;  // the server will not have this run
  bool closing_ = false;
  RunStatus status_ = RunStatus::kFailed;  // set before closing_

  std::thread thread_;
};

}  // namespace lockstep::track
