#pragma once

#include <lockstep/tracker.h>

#include <lockstep/json.h>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "track/http_client.h"
#include "track/mlflow_settings.h"

namespace lockstep::track {

struct MlflowMetric {
  std::string key;
  double value = 0;
  int64_t timestamp_ms = 0;
  int64_t step = 0;
};

struct MlflowParameter {
  std::string key;
  std::string value;
};

// A file of a run: what is read when it is sent, or the bytes themselves.
struct MlflowArtifact {
  std::string name;  // below the run's artifacts, with / between folders
  std::filesystem::path file;
  std::string bytes;
};

// MLflow's REST interface, as far as a training run needs it. Every call asks the server
// and waits. CommError: no answer, or one that says to try later. ConfigError: the
// server refuses; trying again does not help. One thread.
class MlflowApi {
 public:
  // What the server takes in one request.
  static constexpr size_t kMaxMetrics = 1000;
  static constexpr size_t kMaxParameters = 100;

  explicit MlflowApi(const MlflowSettings& settings);

  // Goes on with the run of the settings, or makes one, and its experiment when it is
  // not there.
  void open_run();
  bool is_open() const { return !run_id_.empty(); }
  const std::string& run_id() const { return run_id_; }

  // REQUIRES of all below: is_open().
  void log_metrics(std::span<const MlflowMetric> metrics);
  void log_parameters(std::span<const MlflowParameter> parameters);
  void upload(const MlflowArtifact& artifact);
  void close_run(RunStatus status);

  // Thread-safe: see HttpClient.
  void give_up_at(HttpClient::Clock::time_point time, HttpClient::Clock::duration patience) {
    http_.give_up_at(time, patience);
  }
  bool has_given_up() const { return http_.has_given_up(); }

 private:
  struct Answer;
  Answer ask(std::string_view method, const std::string& call, const Json* body);
  // Throws unless the status is 200.
  Answer demand(std::string_view method, const std::string& call, const Json& body);
  bool resume_run();
  std::string experiment_id();
  void create_run(const std::string& experiment);

  const MlflowSettings settings_;
  HttpClient http_;
  std::string run_id_;
  std::string artifact_uri_;
};

// A name as MLflow allows it: other characters than letters, digits and "_-. :/" become
// "_", and what is longer than 250 bytes is cut.
std::string mlflow_key(std::string_view name);

}  // namespace lockstep::track
