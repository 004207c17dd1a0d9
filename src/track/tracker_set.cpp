#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/tracker_set.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"

namespace lockstep {

TrackerSet::~TrackerSet() { close(RunStatus::kFailed); }

TrackerSet TrackerSet::open(std::span<const std::string> names, const TrackerOptions& options) {
  // All names before the first tracker: one that is opened for nothing is a failed run.
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
        base::log_warning("track", "the tracker '{}' cannot write, training goes on: {}",
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
