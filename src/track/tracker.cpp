#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/track.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "base/environment.h"
#include "base/log.h"
#include "track/mlflow.h"
#include "track/trackers.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 4> kTrackerNames = {"tensorboard", "mlflow", "csv", "jsonl"};

}  // namespace

std::span<const std::string_view> tracker_names() { return kTrackerNames; }

void check_tracker_name(std::string_view name) {
  if (std::find(kTrackerNames.begin(), kTrackerNames.end(), name) != kTrackerNames.end()) return;
  throw ConfigError("track", fmt::format("no tracker has this name, choose one of {}: '{}'",
                                         fmt::join(kTrackerNames, ", "), name));
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

TrackerSet::~TrackerSet() { close(RunStatus::kFailed); }

TrackerSet TrackerSet::open(std::span<const std::string> names, const TrackerOptions& options) {
  // Check all names before opening a tracker: an opened tracker leaves a failed run behind.
  for (auto name = names.begin(); name != names.end(); ++name) {
    check_tracker_name(*name);
    if (std::find(names.begin(), name, *name) != name) {
      throw ConfigError("track", fmt::format("a tracker is named twice: '{}'", *name));
    }
  }
  TrackerSet set;
  for (const std::string& name : names) set.add(make_tracker(name, options));
  return set;
}

void TrackerSet::add(std::unique_ptr<Tracker> tracker) { members_.push_back({std::move(tracker)}); }

void TrackerSet::for_each(const std::function<void(Tracker&)>& write) {
  for (Member& member : members_) {
    try {
      write(*member.tracker);
    } catch (const std::exception& error) {
      if (member.lost_writes++ == 0) {
        base::log_warning("track", "the tracker '{}' cannot write, training continues: {}",
                          member.tracker->name(), error.what());
      }
    }
  }
}

void TrackerSet::write_scalars(std::span<const Scalar> scalars, int64_t step) {
  for_each([&](Tracker& tracker) { tracker.write_scalars(scalars, step); });
}

void TrackerSet::write_hyperparameters(const Hyperparameters& parameters, const FinalMetrics& metrics) {
  for_each([&](Tracker& tracker) { tracker.write_hyperparameters(parameters, metrics); });
}

void TrackerSet::write_histogram(std::string_view name, const Histogram& histogram, int64_t step) {
  for_each([&](Tracker& tracker) { tracker.write_histogram(name, histogram, step); });
}

void TrackerSet::write_image(std::string_view name, const Image& image, int64_t step) {
  for_each([&](Tracker& tracker) { tracker.write_image(name, image, step); });
}

void TrackerSet::write_text(std::string_view name, std::string_view text, int64_t step) {
  for_each([&](Tracker& tracker) { tracker.write_text(name, text, step); });
}

void TrackerSet::write_graph(const Graph& graph) {
  for_each([&](Tracker& tracker) { tracker.write_graph(graph); });
}

void TrackerSet::log_artifact(const std::filesystem::path& path) {
  for_each([&](Tracker& tracker) { tracker.log_artifact(path); });
}

void TrackerSet::flush() {
  for_each([](Tracker& tracker) { tracker.flush(); });
}

void TrackerSet::close(RunStatus status) {
  for_each([&](Tracker& tracker) { tracker.close(status); });
  for (const Member& member : members_) {
    if (member.lost_writes > 0) {
      base::log_info("track", "the tracker '{}' has lost {} writes", member.tracker->name(),
                     member.lost_writes);
    }
  }
  members_.clear();
}

}  // namespace lockstep
