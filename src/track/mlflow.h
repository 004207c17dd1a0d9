#pragma once

#include <lockstep/json.h>
#include <lockstep/track.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/environment.h"
#include "track/http_client.h"

namespace lockstep::track {

// The MLflow server, and the run on it.
struct MlflowSettings {
  std::string tracking_uri;  // http:// or https://, without a slash at the end
  Credentials credentials;
  std::string experiment_name;
  std::string run_name;  // empty: the server chooses a name
  std::string user;      // the owner of the run; empty: not sent
  // The run to resume; empty: create a run.
  std::string run_id;
  // The user set run_id: if the server does not have this run, that is an error. Otherwise a new
  // run is created.
  bool run_id_is_required = false;
  // The file that keeps the run's id for a later resume; empty: none.
  std::filesystem::path run_file;
  std::chrono::milliseconds close_timeout{};
};

// Reads MLflow's environment variables and, for a run that resumes, the id in its folder.
// ConfigError: no server is set, or its address is not http.
MlflowSettings mlflow_settings(const TrackerOptions& options, const base::Environment& environment);

// The address without user name and password, for messages.
std::string without_credentials(const std::string& uri);

// Writes settings.run_file for a later resume. ConfigError: the file cannot be written.
void save_run_id(const MlflowSettings& settings, const std::string& run_id);

// A name as MLflow allows it: characters other than letters, digits and "_-. :/" become "_", and
// the name is cut after 250 bytes.
std::string mlflow_key(std::string_view name);

struct MlflowMetric {
  std::string key;
  double value = 0;
  int64_t timestamp_ms = 0;  // since 1970
  int64_t step = 0;
};

struct MlflowParameter {
  std::string key;
  std::string value;
};

// A file of a run: a path that is read when the file is sent, or the content itself.
struct MlflowArtifact {
  std::string name;  // below the run's artifacts, with / between folders
  std::filesystem::path file;
  std::string bytes;
};

// --- files of a run in a folder of the server ---

// A server that keeps the files of runs in a folder answers with its path, and clients write there
// themselves. The checks below prevent that a server, or a program that answers in its place, chooses
// any other file.

// Whether the server's address is this machine's own: localhost or a loopback address.
bool is_on_this_machine(const std::string& tracking_uri);

// The path of the file `name` of a run, below the run's folder that the server sent. ConfigError: the
// folder is not one of MLflow's (an absolute path that ends in RUN_ID/artifacts), or the name or a link
// in the folder leads out of it.
std::filesystem::path place_in_run_folder(const std::filesystem::path& folder, const std::string& run_id,
                                          const std::string& name);

// ConfigError: a ".." is among the parts of the name of a run's file.
void check_artifact_name(const std::string& name);

// --- the server's interface ---

// The part of MLflow's REST interface that a training run needs. Every call blocks until the
// server has answered. CommError: no answer, or a status that asks to retry. ConfigError: the
// server rejects the request, and a retry does not help. For one thread.
class MlflowApi {
 public:
  // Limits of the server for one request.
  static constexpr size_t kMaxMetrics = 1000;
  static constexpr size_t kMaxParameters = 100;

  explicit MlflowApi(const MlflowSettings& settings);

  // Resumes the run of the settings, or creates one, and its experiment if that is missing.
  void open_run();
  bool is_open() const { return !run_id_.empty(); }
  const std::string& run_id() const { return run_id_; }

  // REQUIRES of all below: is_open().
  void log_metrics(std::span<const MlflowMetric> metrics);
  void log_parameters(std::span<const MlflowParameter> parameters);
  void upload(const MlflowArtifact& artifact);
  void close_run(RunStatus status);

  // Thread-safe: see HttpClient.
  void give_up_at(HttpClient::Clock::time_point time, HttpClient::Clock::duration extension) {
    http_.give_up_at(time, extension);
  }
  bool has_given_up() const { return http_.has_given_up(); }

 private:
  struct Answer;
  // Throws only for statuses that ask to retry and for answers that are no JSON.
  Answer request(std::string_view method, const std::string& call, const Json* body);
  // Throws unless the status is 200.
  Answer request_or_throw(std::string_view method, const std::string& call, const Json& body);
  bool resume_run();
  std::string experiment_id();
  void create_run(const std::string& experiment);

  const MlflowSettings settings_;
  HttpClient http_;
  std::string run_id_;
  std::string artifact_uri_;
};

}  // namespace lockstep::track
