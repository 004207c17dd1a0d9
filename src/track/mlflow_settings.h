#pragma once

#include <lockstep/tracker.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "base/environment.h"
#include "track/http_client.h"

namespace lockstep::track {

// Which server, and which run there.
struct MlflowSettings {
  std::string tracking_uri;  // http:// or https://, no slash at the end
  Credentials credentials;
  std::string experiment_name;
  std::string run_name;  // empty: the server makes one up
  std::string user;      // whose run it is; empty: nobody's
  // The run to go on with; empty: a new one.
  std::string run_id;
  // The user named run_id: when the server has no such run, that is an error. Else a
  // new run is made.
  bool run_id_is_asked_for = false;
  // Where the run's id is kept for a run that resumes; empty: nowhere.
  std::filesystem::path run_file;
  std::chrono::milliseconds close_timeout{};
};

// Reads MLflow's own variables, and the id that the run before has left in the folder
// when this one resumes it. ConfigError: no server, or an address that is not http.
MlflowSettings mlflow_settings(const TrackerOptions& options, const base::Environment& environment);

// The address without a name and a password, for messages.
std::string without_credentials(const std::string& uri);

// Leaves the id for a run that resumes. ConfigError: it cannot be written.
void save_run_id(const MlflowSettings& settings, const std::string& run_id);

}  // namespace lockstep::track
