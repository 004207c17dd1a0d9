#include "track/mlflow_settings.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <lockstep/json.h>

#include "base/atomic_file.h"
#include "track/output_file.h"

namespace lockstep::track {
namespace {

std::string tracking_uri(const base::Environment& environment) {
  std::string uri = environment.get("MLFLOW_TRACKING_URI").value_or("");
  if (!uri.starts_with("http://") && !uri.starts_with("https://")) {
    throw ConfigError(
        "track",
        fmt::format("the tracker mlflow needs a server, set MLFLOW_TRACKING_URI to its address, such "
                    "as http://localhost:5000 for one that `mlflow server` starts: '{}'",
                    uri));
  }
  while (uri.ends_with('/')) uri.pop_back();
  return uri;
}

// The id that a run of this server has left; empty when there is none.
std::string saved_run_id(const std::filesystem::path& file, const std::string& uri) {
  const Json saved = Json::try_parse(read_file(file)).value_or(nullptr);
  const auto text_of = [&](const char* key) {
    return saved.is_object() && saved.contains(key) && saved[key].is_string() ? saved[key].get<std::string>()
                                                                              : "";
  };
  return text_of("tracking_uri") == without_credentials(uri) ? text_of("run_id") : "";
}

}  // namespace

MlflowSettings mlflow_settings(const TrackerOptions& options, const base::Environment& environment) {
  const auto variable = [&](const char* name) { return environment.get(name).value_or(""); };
  MlflowSettings settings;
  settings.tracking_uri = tracking_uri(environment);
  settings.credentials = {.username = variable("MLFLOW_TRACKING_USERNAME"),
                          .password = variable("MLFLOW_TRACKING_PASSWORD"),
                          .token = variable("MLFLOW_TRACKING_TOKEN")};
  settings.experiment_name = variable("MLFLOW_EXPERIMENT_NAME");
  if (settings.experiment_name.empty()) settings.experiment_name = "Default";
  settings.run_name = variable("MLFLOW_RUN_NAME");
  if (settings.run_name.empty()) settings.run_name = options.run_name;
  settings.user = variable("USER");
  if (!options.folder.empty()) settings.run_file = options.folder / "mlflow_run.json";
  settings.run_id = variable("MLFLOW_RUN_ID");
  settings.run_id_is_asked_for = !settings.run_id.empty();
  if (settings.run_id.empty() && options.resume_step && !settings.run_file.empty()) {
    settings.run_id = saved_run_id(settings.run_file, settings.tracking_uri);
  }
  settings.close_timeout = options.close_timeout;
  return settings;
}

std::string without_credentials(const std::string& uri) {
  const size_t host = uri.find("://") + 3;
  const size_t at = uri.find('@', host);
  if (at == std::string::npos || at > uri.find('/', host)) return uri;
  return uri.substr(0, host) + uri.substr(at + 1);
}

void save_run_id(const MlflowSettings& settings, const std::string& run_id) {
  if (settings.run_file.empty()) return;
  make_folder(settings.run_file.parent_path());
  const Json saved = {{"tracking_uri", without_credentials(settings.tracking_uri)}, {"run_id", run_id}};
  base::publish_file(settings.run_file, saved.dump({.order = Json::Order::kAsAdded}) + "\n");
}

}  // namespace lockstep::track
