#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/tracker.h>

#include <algorithm>
#include <array>

#include "base/environment.h"
#include "track/csv_tracker.h"
#include "track/jsonl_tracker.h"
#include "track/mlflow_settings.h"
#include "track/mlflow_tracker.h"
#include "track/tensorboard_tracker.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"tensorboard", "mlflow", "csv", "jsonl"};

}  // namespace

std::span<const std::string_view> tracker_names() { return kNames; }

void check_tracker_name(std::string_view name) {
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return;
  throw ConfigError("track", fmt::format("no tracker has this name, choose one of {}: '{}'",
                                         fmt::join(kNames, ", "), name));
}

std::unique_ptr<Tracker> make_tracker(std::string_view name, const TrackerOptions& options) {
  return make_tracker(name, options, base::Environment::of_process());
}

std::unique_ptr<Tracker> make_tracker(std::string_view name, const TrackerOptions& options,
                                      const base::Environment& environment) {
  check_tracker_name(name);
  if (name == "tensorboard") return track::make_tensorboard_tracker(options);
  if (name == "csv") return track::make_csv_tracker(options);
  if (name == "jsonl") return track::make_jsonl_tracker(options);
  return track::make_mlflow_tracker(track::mlflow_settings(options, environment));
}

}  // namespace lockstep
