#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/json.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/process.h"
#include "track/json_value.h"
#include "track/mlflow.h"
#include "track/output_file.h"
#include "track/trackers.h"

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

// The id that a run on this server saved; empty if there is none.
std::string saved_run_id(const std::filesystem::path& file, const std::string& uri) {
  const Json saved = Json::try_parse(read_file(file)).value_or(nullptr);
  const auto text_of = [&](const char* key) {
    return saved.is_object() && saved.contains(key) && saved[key].is_string() ? saved[key].get<std::string>()
                                                                              : "";
  };
  return text_of("tracking_uri") == without_credentials(uri) ? text_of("run_id") : "";
}

constexpr size_t kMaxKeyBytes = 250;
constexpr size_t kMaxParameterBytes = 6000;
constexpr std::string_view kProxyScheme = "mlflow-artifacts:/";

// The first max_bytes bytes, or fewer so that no UTF-8 character is split.
std::string_view cut(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  while (max_bytes > 0 && (static_cast<uint8_t>(text[max_bytes]) & 0xc0U) == 0x80U) --max_bytes;
  return text.substr(0, max_bytes);
}

// "a b/c" as "a%20b/c".
std::string encoded_path(std::string_view path) {
  std::string result;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (begin > 0) result += '/';
    result += url_encoded(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

// The folder that the address of a run's files names, if it is one of a folder.
std::optional<std::filesystem::path> folder_of(const std::string& artifact_uri) {
  constexpr std::string_view kScheme = "file://";
  if (artifact_uri.starts_with("/")) return artifact_uri;
  if (artifact_uri.starts_with("file:///")) return artifact_uri.substr(kScheme.size());
  return std::nullopt;
}

void copy_to(const std::filesystem::path& target, const MlflowArtifact& artifact) {
  std::error_code error;
  std::filesystem::create_directories(target.parent_path(), error);
  if (!artifact.file.empty()) {
    std::filesystem::copy_file(artifact.file, target, std::filesystem::copy_options::overwrite_existing,
                               error);
    if (error) {
      throw ConfigError("track", fmt::format("cannot copy '{}' to '{}': {}", artifact.file.string(),
                                             target.string(), error.message()));
    }
  } else {
    base::publish_file(target, artifact.bytes);
  }
}

// Too many requests, or an error of the server.
bool asks_to_retry(int status) { return status == 429 || status >= 500; }

// MLflow's names.
const char* name_of(RunStatus status) {
  switch (status) {
    case RunStatus::kFinished: return "FINISHED";
    case RunStatus::kFailed: return "FAILED";
    case RunStatus::kInterrupted: return "KILLED";
  }
  return "FAILED";
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
  settings.run_id_is_required = !settings.run_id.empty();
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

std::string mlflow_key(std::string_view name) {
  std::string key(cut(name, kMaxKeyBytes));
  for (char& c : key) {
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                         static_cast<uint8_t>(c) >= 0x80 ||
                         std::string_view("_-. :/").find(c) != std::string_view::npos;
    if (!allowed) c = '_';
  }
  return key;
}

struct MlflowApi::Answer {
  int status = 0;
  Json body;
  std::string message = {};  // the error, if the status is not 200
};

MlflowApi::MlflowApi(const MlflowSettings& settings) : settings_(settings), http_(settings.credentials) {}

MlflowApi::Answer MlflowApi::request(std::string_view method, const std::string& call, const Json* body) {
  const HttpResponse response = http_.send({.method = std::string(method),
                                            .url = settings_.tracking_uri + "/api/2.0/mlflow/" + call,
                                            .content_type = "application/json",
                                            .body = body != nullptr ? json_text(*body) : ""});
  Answer answer{.status = response.status, .body = Json::try_parse(response.body).value_or(nullptr)};
  if (response.status == 200 && answer.body.is_object()) return answer;
  if (answer.body.is_object() && answer.body.contains("message") && answer.body.at("message").is_string()) {
    answer.message = answer.body.at("message").get<std::string>();
  }
  if (answer.message.empty()) answer.message = cut(response.body, 200);
  const std::string where = fmt::format("{} of {}", call, without_credentials(settings_.tracking_uri));
  answer.message = fmt::format("{} answers {}: {}", where, response.status, answer.message);
  if (asks_to_retry(response.status)) {
    throw CommError("track", answer.message, CommError::Recovery::kRebuild);
  }
  if (response.status == 200) throw ConfigError("track", answer.message + " (not an MLflow server?)");
  return answer;
}

MlflowApi::Answer MlflowApi::request_or_throw(std::string_view method, const std::string& call,
                                              const Json& body) {
  Answer answer = request(method, call, &body);
  if (answer.status != 200) throw ConfigError("track", answer.message);
  return answer;
}

void MlflowApi::open_run() {
  try {
    if (!settings_.run_id.empty() && resume_run()) return;
    create_run(experiment_id());
  } catch (const JsonError& error) {  // a member is missing or has another type
    throw ConfigError("track",
                      fmt::format("{} answers with other JSON than MLflow: {} (not an MLflow server?)",
                                  without_credentials(settings_.tracking_uri), error.what()));
  }
}

bool MlflowApi::resume_run() {
  const Json body = {{"run_id", settings_.run_id}, {"status", "RUNNING"}};
  const Answer answer = request("POST", "runs/update", &body);
  if (answer.status != 200) {
    if (settings_.run_id_is_required) throw ConfigError("track", answer.message);
    return false;
  }
  const Json& info = answer.body.at("run_info");
  artifact_uri_ = info.value("artifact_uri", "");
  run_id_ = settings_.run_id;
  return true;
}

std::string MlflowApi::experiment_id() {
  const std::string find =
      "experiments/get-by-name?experiment_name=" + url_encoded(settings_.experiment_name);
  Answer answer = request("GET", find, nullptr);
  if (answer.status == 404) {
    const Json body = {{"name", settings_.experiment_name}};
    const Answer made = request("POST", "experiments/create", &body);
    if (made.status == 200) return made.body.at("experiment_id").get<std::string>();
    // Another run may have created it in the meantime.
    answer = request("GET", find, nullptr);
    if (answer.status != 200) throw ConfigError("track", made.message);
  }
  if (answer.status != 200) throw ConfigError("track", answer.message);
  const Json& experiment = answer.body.at("experiment");
  if (experiment.value("lifecycle_stage", "") == "deleted") {
    throw ConfigError("track",
                      fmt::format("the experiment is deleted, restore it or set MLFLOW_EXPERIMENT_NAME to "
                                  "another one: '{}'",
                                  settings_.experiment_name));
  }
  return experiment.at("experiment_id").get<std::string>();
}

void MlflowApi::create_run(const std::string& experiment) {
  const std::string program = std::filesystem::path(base::own_executable()).filename();
  Json tags = {{{"key", "mlflow.source.name"}, {"value", program}},
               {{"key", "mlflow.source.type"}, {"value", "LOCAL"}}};
  if (!settings_.user.empty()) tags.push_back({{"key", "mlflow.user"}, {"value", settings_.user}});
  Json body = {{"experiment_id", experiment}, {"start_time", milliseconds_since_1970()}, {"tags", tags}};
  if (!settings_.run_name.empty()) body["run_name"] = settings_.run_name;
  const Answer answer = request_or_throw("POST", "runs/create", body);
  const Json& info = answer.body.at("run").at("info");
  artifact_uri_ = info.value("artifact_uri", "");
  run_id_ = info.at("run_id").get<std::string>();
}

void MlflowApi::log_metrics(std::span<const MlflowMetric> metrics) {
  base::check(metrics.size() <= kMaxMetrics, "a batch of metrics within MLflow's limit");
  Json list = Json::array();
  for (const MlflowMetric& metric : metrics) {
    list.push_back({{"key", metric.key},
                    {"value", json_value(metric.value)},
                    {"timestamp", metric.timestamp_ms},
                    {"step", metric.step}});
  }
  request_or_throw("POST", "runs/log-batch", {{"run_id", run_id_}, {"metrics", std::move(list)}});
}

void MlflowApi::log_parameters(std::span<const MlflowParameter> parameters) {
  base::check(parameters.size() <= kMaxParameters, "a batch of parameters within MLflow's limit");
  Json list = Json::array();
  for (const MlflowParameter& parameter : parameters) {
    list.push_back({{"key", parameter.key}, {"value", cut(parameter.value, kMaxParameterBytes)}});
  }
  request_or_throw("POST", "runs/log-batch", {{"run_id", run_id_}, {"params", std::move(list)}});
}

void MlflowApi::upload(const MlflowArtifact& artifact) {
  check_artifact_name(artifact.name);
  if (const std::optional<std::filesystem::path> folder = folder_of(artifact_uri_)) {
    if (!is_on_this_machine(settings_.tracking_uri)) {
      throw ConfigError(
          "track",
          fmt::format("{} keeps files of the run in a folder of its machine, and by its address that is "
                      "not this one: start the server with --serve-artifacts: '{}'",
                      without_credentials(settings_.tracking_uri), artifact_uri_));
    }
    return copy_to(place_in_run_folder(*folder, run_id_, artifact.name), artifact);
  }
  if (!artifact_uri_.starts_with(kProxyScheme) || artifact_uri_.starts_with("mlflow-artifacts://")) {
    throw ConfigError("track", fmt::format("only MLflow's own client can write to the run's artifact store, "
                                           "start the server with --serve-artifacts: '{}'",
                                           artifact_uri_));
  }
  const std::string path = artifact_uri_.substr(kProxyScheme.size()) + "/" + artifact.name;
  const HttpResponse response =
      http_.send({.method = "PUT",
                  .url = settings_.tracking_uri + "/api/2.0/mlflow-artifacts/artifacts/" + encoded_path(path),
                  .content_type = "application/octet-stream",
                  .body = artifact.bytes,
                  .file = artifact.file});
  if (response.status == 200) return;
  const std::string text =
      fmt::format("the file '{}' was rejected by {}: {} {}", artifact.name,
                  without_credentials(settings_.tracking_uri), response.status, cut(response.body, 200));
  if (asks_to_retry(response.status)) throw CommError("track", text, CommError::Recovery::kRebuild);
  throw ConfigError("track", text);
}

void MlflowApi::close_run(RunStatus status) {
  request_or_throw(
      "POST", "runs/update",
      {{"run_id", run_id_}, {"status", name_of(status)}, {"end_time", milliseconds_since_1970()}});
}

}  // namespace lockstep::track
