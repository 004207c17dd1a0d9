#include "track/mlflow_api.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <lockstep/json.h>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/atomic_file.h"
#include "base/check.h"
#include "base/process.h"
#include "track/clock.h"
#include "track/json_value.h"

namespace lockstep::track {
namespace {

constexpr size_t kMaxKeyBytes = 250;
constexpr size_t kMaxParameterBytes = 6000;
constexpr std::string_view kProxyScheme = "mlflow-artifacts:/";

// At most so many bytes, and no part of a character.
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

// As MLflow calls them.
const char* name_of(RunStatus status) {
  switch (status) {
    case RunStatus::kFinished: return "FINISHED";
    case RunStatus::kFailed: return "FAILED";
    case RunStatus::kInterrupted: return "KILLED";
  }
  return "FAILED";
}

}  // namespace

struct MlflowApi::Answer {
  int status = 0;
  Json body;
  std::string message = {};  // what is wrong, when the status is not 200
};

MlflowApi::MlflowApi(const MlflowSettings& settings) : settings_(settings), http_(settings.credentials) {}

MlflowApi::Answer MlflowApi::ask(std::string_view method, const std::string& call, const Json* body) {
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
  // Too many requests, or the server's own trouble.
  if (response.status == 429 || response.status >= 500) {
    throw CommError("track", fmt::format("{} answers {}: {}", where, response.status, answer.message),
                    CommError::Recovery::kRebuild);
  }
  answer.message = fmt::format("{} answers {}: {}", where, response.status, answer.message);
  if (response.status == 200) throw ConfigError("track", answer.message + " (not an MLflow server?)");
  return answer;
}

MlflowApi::Answer MlflowApi::demand(std::string_view method, const std::string& call, const Json& body) {
  Answer answer = ask(method, call, &body);
  if (answer.status != 200) throw ConfigError("track", answer.message);
  return answer;
}

void MlflowApi::open_run() {
  try {
    if (!settings_.run_id.empty() && resume_run()) return;
    create_run(experiment_id());
  } catch (const JsonError& error) {  // a member is missing or of another type
    throw ConfigError("track",
                      fmt::format("{} answers with other JSON than MLflow: {} (not an MLflow server?)",
                                  without_credentials(settings_.tracking_uri), error.what()));
  }
}

bool MlflowApi::resume_run() {
  const Json body = {{"run_id", settings_.run_id}, {"status", "RUNNING"}};
  const Answer answer = ask("POST", "runs/update", &body);
  if (answer.status != 200) {
    if (settings_.run_id_is_asked_for) throw ConfigError("track", answer.message);
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
  Answer answer = ask("GET", find, nullptr);
  if (answer.status == 404) {
    const Json body = {{"name", settings_.experiment_name}};
    const Answer made = ask("POST", "experiments/create", &body);
    if (made.status == 200) return made.body.at("experiment_id").get<std::string>();
    // Another run may have made it meanwhile.
    answer = ask("GET", find, nullptr);
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
  const Answer answer = demand("POST", "runs/create", body);
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
  demand("POST", "runs/log-batch", {{"run_id", run_id_}, {"metrics", std::move(list)}});
}

void MlflowApi::log_parameters(std::span<const MlflowParameter> parameters) {
  base::check(parameters.size() <= kMaxParameters, "a batch of parameters within MLflow's limit");
  Json list = Json::array();
  for (const MlflowParameter& parameter : parameters) {
    list.push_back({{"key", parameter.key}, {"value", cut(parameter.value, kMaxParameterBytes)}});
  }
  demand("POST", "runs/log-batch", {{"run_id", run_id_}, {"params", std::move(list)}});
}

void MlflowApi::upload(const MlflowArtifact& artifact) {
  if (artifact_uri_.starts_with("/"))
    return copy_to(std::filesystem::path(artifact_uri_) / artifact.name, artifact);
  if (artifact_uri_.starts_with("file:///")) {
    return copy_to(std::filesystem::path(artifact_uri_.substr(7)) / artifact.name, artifact);
  }
  if (!artifact_uri_.starts_with(kProxyScheme) || artifact_uri_.starts_with("mlflow-artifacts://")) {
    throw ConfigError("track",
                      fmt::format("files of the run go to a place that only MLflow's own client knows, "
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
      fmt::format("the file '{}' is not taken by {}: {} {}", artifact.name,
                  without_credentials(settings_.tracking_uri), response.status, cut(response.body, 200));
  if (response.status == 429 || response.status >= 500) {
    throw CommError("track", text, CommError::Recovery::kRebuild);
  }
  throw ConfigError("track", text);
}

void MlflowApi::close_run(RunStatus status) {
  demand("POST", "runs/update",
         {{"run_id", run_id_}, {"status", name_of(status)}, {"end_time", milliseconds_since_1970()}});
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

}  // namespace lockstep::track
