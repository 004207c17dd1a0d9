#include "track/mlflow_tracker.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "track/clock.h"
#include "track/mlflow_sender.h"
#include "track/png.h"

namespace lockstep::track {
namespace {

// As MLflow's Python client writes a value.
std::string parameter_text(const HyperparameterValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "True" : "False";
  return std::visit([](const auto& held) { return fmt::format("{}", held); }, value);
}

class MlflowTracker final : public Tracker {
 public:
  explicit MlflowTracker(const MlflowSettings& settings) : sender_(settings) {}

  std::string_view name() const override { return "mlflow"; }

  void write_scalars(std::span<const Scalar> scalars, int64_t step) override {
    const int64_t now = milliseconds_since_1970();
    std::vector<MlflowMetric> metrics;
    metrics.reserve(scalars.size());
    for (const Scalar& scalar : scalars)
      metrics.push_back({mlflow_key(scalar.name), scalar.value, now, step});
    sender_.put(std::move(metrics));
    last_step_ = std::max(last_step_, step);
  }

  void write_hyperparameters(const Hyperparameters& parameters, const FinalMetrics& metrics) override {
    if (!has_parameters_) {
      std::vector<MlflowParameter> list;
      list.reserve(parameters.size());
      for (const auto& [key, value] : parameters) list.push_back({mlflow_key(key), parameter_text(value)});
      sender_.put(std::move(list));
      has_parameters_ = !parameters.empty();
    }
    // Keys of their own: the final value of a metric need not be its last one.
    const int64_t now = milliseconds_since_1970();
    std::vector<MlflowMetric> finals;
    for (const auto& [key, value] : metrics)
      finals.push_back({mlflow_key("final/" + key), value, now, last_step_});
    sender_.put(std::move(finals));
  }

  void write_image(std::string_view name, const Image& image, int64_t step) override {
    sender_.put(MlflowArtifact{
        .name = fmt::format("images/{}/step_{}.png", name, step), .file = {}, .bytes = encode_png(image)});
  }

  void write_text(std::string_view name, std::string_view text, int64_t step) override {
    sender_.put(MlflowArtifact{
        .name = fmt::format("text/{}/step_{}.txt", name, step), .file = {}, .bytes = std::string(text)});
  }

  void log_artifact(const std::filesystem::path& path) override {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      if (!std::filesystem::exists(path, error)) {
        throw ConfigError("track", fmt::format("no such file to keep with the run: '{}'", path.string()));
      }
      return sender_.put(MlflowArtifact{.name = path.filename(), .file = path, .bytes = {}});
    }
    const std::filesystem::path folder = path.has_filename() ? path : path.parent_path();
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file()) continue;
      sender_.put(MlflowArtifact{.name = folder.filename() / entry.path().lexically_relative(folder),
                                 .file = entry.path(),
                                 .bytes = {}});
    }
  }

  void close(RunStatus status) override { sender_.close(status); }

 private:
  MlflowSender sender_;
  int64_t last_step_ = 0;
  bool has_parameters_ = false;  // the server has them, or will
};

}  // namespace

std::unique_ptr<Tracker> make_mlflow_tracker(const MlflowSettings& settings) {
  return std::make_unique<MlflowTracker>(settings);
}

}  // namespace lockstep::track
