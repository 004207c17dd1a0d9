#pragma once

#include <lockstep/tracker.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

// The messages of TensorBoard's event files (event.proto, summary.proto, graph.proto and the
// plugin_data.proto of its plugin hparams), serialized.
namespace lockstep::track {

// When, in seconds since 1970, and at which step something was measured.
struct EventTime {
  double wall_s = 0;
  int64_t step = 0;
};

// The first event of every file.
std::string file_version_event(EventTime time);
// Makes TensorBoard forget what it read of this step and later in older files.
std::string session_start_event(EventTime time);

std::string scalars_event(EventTime time, std::span<const Scalar> scalars);
std::string histogram_event(EventTime time, std::string_view name, const Histogram& histogram);
std::string image_event(EventTime time, std::string_view name, const Image& image);
std::string text_event(EventTime time, std::string_view name, std::string_view text);
// For the tab GRAPHS.
std::string graph_event(EventTime time, const Graph& graph);

// For the tab HPARAMS: the names that it shows, the values of this run, how it ended.
std::string experiment_event(EventTime time, const Hyperparameters& parameters,
                             std::span<const std::string> metric_tags);
std::string hyperparameters_event(EventTime time, const Hyperparameters& parameters);
std::string run_end_event(EventTime time, RunStatus status);

}  // namespace lockstep::track
