#include <unistd.h>

#include <fmt/format.h>
#include <lockstep/track.h>
#include <protozero/pbf_writer.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/log.h"
#include "track/output_file.h"
#include "track/png.h"
#include "track/tfrecord.h"
#include "track/trackers.h"

namespace lockstep::track {
namespace {

using protozero::pbf_writer;

// --- the messages of event files: event.proto, summary.proto, graph.proto, and plugin_data.proto of
// the plugin hparams ---

// Field numbers, message by message.
namespace event {
enum {
  kWallTime = 1,
  kStep = 2,
  kFileVersion = 3,
  kGraph = 4,
  kSummary = 5,
  kSessionLog = 7,
  kSourceMetadata = 10
};
}
namespace source_metadata {
enum { kWriter = 1 };
}
namespace session_log {
enum { kStatus = 1 };
}
namespace summary {
enum { kValue = 1 };
}
namespace value {
enum { kTag = 1, kSimpleValue = 2, kImage = 4, kHistogram = 5, kTensor = 8, kMetadata = 9 };
}
namespace metadata {
enum { kPluginData = 1 };
}
namespace plugin_data {
enum { kPluginName = 1, kContent = 2 };
}
namespace image_proto {
enum { kHeight = 1, kWidth = 2, kColorspace = 3, kEncoded = 4 };
}
namespace histogram_proto {
enum { kMin = 1, kMax = 2, kCount = 3, kSum = 4, kSumSquares = 5, kBucketLimits = 6, kBucketCounts = 7 };
}
namespace tensor {
enum { kType = 1, kShape = 2, kStrings = 8 };
}
namespace tensor_shape {
enum { kDimension = 2 };
}
namespace dimension {
enum { kSize = 1 };
}
namespace graph_def {
enum { kNode = 1, kVersions = 4 };
}
namespace versions {
enum { kProducer = 1 };
}
namespace node_def {
enum { kName = 1, kOp = 2, kInput = 3, kAttribute = 5 };
}
namespace attribute_value {
enum { kBytes = 2, kInteger = 3 };
}
// Of the plugin hparams.
namespace hparams_data {
enum { kVersion = 1, kExperiment = 2, kSessionStart = 3, kSessionEnd = 4 };
}
namespace experiment {
enum { kParameters = 4, kMetrics = 5 };
}
namespace parameter_info {
enum { kName = 1, kType = 4 };
}
namespace metric_info {
enum { kName = 1 };
}
namespace metric_name {
enum { kTag = 2 };
}
namespace session_start {
enum { kParameters = 1, kStartTime = 5 };
}
namespace map_entry {
enum { kKey = 1, kValue = 2 };
}
namespace session_end {
enum { kStatus = 1, kEndTime = 2 };
}
// google.protobuf.Value
namespace any_value {
enum { kNumber = 2, kString = 3, kBool = 4 };
}

// Enum values.
constexpr int kSessionStarted = 1;
constexpr int kTypeString = 7;  // of a tensor
constexpr int kGraphVersion = 22;
enum ParameterType { kParameterString = 1, kParameterBool = 2, kParameterNumber = 3 };
enum EndStatus { kEndSuccess = 1, kEndFailure = 2 };

// The wall clock in seconds since 1970, and the training step.
struct EventTime {
  double wall_s = 0;
  int64_t step = 0;
};

template <typename Fill>
void add_message(pbf_writer& parent, protozero::pbf_tag_type field, Fill&& fill) {
  pbf_writer message(parent, field);
  fill(message);
}

template <typename Fill>
std::string make_event(EventTime time, Fill&& fill) {
  std::string bytes;
  pbf_writer writer(bytes);
  writer.add_double(event::kWallTime, time.wall_s);
  writer.add_int64(event::kStep, time.step);
  fill(writer);
  return bytes;
}

// An event with one summary of one value.
template <typename Fill>
std::string make_value_event(EventTime time, std::string_view tag, Fill&& fill) {
  return make_event(time, [&](pbf_writer& writer) {
    add_message(writer, event::kSummary, [&](pbf_writer& list) {
      add_message(list, summary::kValue, [&](pbf_writer& item) {
        item.add_string(value::kTag, tag.data(), tag.size());
        fill(item);
      });
    });
  });
}

void add_plugin(pbf_writer& item, std::string_view name, const std::string& content) {
  add_message(item, value::kMetadata, [&](pbf_writer& meta) {
    add_message(meta, metadata::kPluginData, [&](pbf_writer& plugin) {
      plugin.add_string(plugin_data::kPluginName, name.data(), name.size());
      plugin.add_bytes(plugin_data::kContent, content);
    });
  });
}

template <typename Fill>
std::string make_hparams_event(EventTime time, std::string_view tag, protozero::pbf_tag_type field,
                               Fill&& fill) {
  std::string content;
  pbf_writer data(content);
  data.add_int32(hparams_data::kVersion, 0);
  add_message(data, field, fill);
  return make_value_event(time, tag, [&](pbf_writer& item) { add_plugin(item, "hparams", content); });
}

ParameterType type_of(const HyperparameterValue& parameter) {
  if (std::holds_alternative<std::string>(parameter)) return kParameterString;
  return std::holds_alternative<bool>(parameter) ? kParameterBool : kParameterNumber;
}

void add_parameter(pbf_writer& writer, const HyperparameterValue& parameter) {
  std::visit(
      [&](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::string>) {
          writer.add_string(any_value::kString, held);
        } else if constexpr (std::is_same_v<Held, bool>) {
          writer.add_bool(any_value::kBool, held);
        } else {
          writer.add_double(any_value::kNumber, static_cast<double>(held));
        }
      },
      parameter);
}

// The first event of every file.
std::string file_version_event(EventTime time) {
  return make_event(time, [](pbf_writer& writer) {
    writer.add_string(event::kFileVersion, "brain.Event:2");
    add_message(writer, event::kSourceMetadata,
                [](pbf_writer& source) { source.add_string(source_metadata::kWriter, "lockstep"); });
  });
}

// Makes TensorBoard drop the events of older files from this step on.
std::string session_start_event(EventTime time) {
  return make_event(time, [](pbf_writer& writer) {
    add_message(writer, event::kSessionLog,
                [](pbf_writer& log) { log.add_enum(session_log::kStatus, kSessionStarted); });
  });
}

std::string scalars_event(EventTime time, std::span<const Scalar> scalars) {
  return make_event(time, [&](pbf_writer& writer) {
    add_message(writer, event::kSummary, [&](pbf_writer& list) {
      for (const Scalar& scalar : scalars) {
        add_message(list, summary::kValue, [&](pbf_writer& item) {
          item.add_string(value::kTag, scalar.name.data(), scalar.name.size());
          item.add_float(value::kSimpleValue, static_cast<float>(scalar.value));
        });
      }
    });
  });
}

std::string histogram_event(EventTime time, std::string_view name, const Histogram& histogram) {
  return make_value_event(time, name, [&](pbf_writer& item) {
    add_message(item, value::kHistogram, [&](pbf_writer& proto) {
      proto.add_double(histogram_proto::kMin, histogram.min);
      proto.add_double(histogram_proto::kMax, histogram.max);
      proto.add_double(histogram_proto::kCount, histogram.count);
      proto.add_double(histogram_proto::kSum, histogram.sum);
      proto.add_double(histogram_proto::kSumSquares, histogram.sum_squares);
      proto.add_packed_double(histogram_proto::kBucketLimits, histogram.bucket_limits.begin(),
                              histogram.bucket_limits.end());
      proto.add_packed_double(histogram_proto::kBucketCounts, histogram.bucket_counts.begin(),
                              histogram.bucket_counts.end());
    });
  });
}

std::string image_event(EventTime time, std::string_view name, const Image& image) {
  const std::string png = encode_png(image);
  return make_value_event(time, name, [&](pbf_writer& item) {
    add_message(item, value::kImage, [&](pbf_writer& proto) {
      proto.add_int32(image_proto::kHeight, image.height);
      proto.add_int32(image_proto::kWidth, image.width);
      proto.add_int32(image_proto::kColorspace, image.channels);
      proto.add_bytes(image_proto::kEncoded, png);
    });
  });
}

std::string text_event(EventTime time, std::string_view name, std::string_view text) {
  return make_value_event(time, std::string(name) + "/text_summary", [&](pbf_writer& item) {
    add_message(item, value::kTensor, [&](pbf_writer& proto) {
      proto.add_enum(tensor::kType, kTypeString);
      add_message(proto, tensor::kShape, [](pbf_writer& shape) {
        add_message(shape, tensor_shape::kDimension,
                    [](pbf_writer& length) { length.add_int64(dimension::kSize, 1); });
      });
      proto.add_bytes(tensor::kStrings, text.data(), text.size());
    });
    add_plugin(item, "text", "");
  });
}

// For the tab GRAPHS.
std::string graph_event(EventTime time, const Graph& graph) {
  std::string bytes;
  pbf_writer definition(bytes);
  const auto add_attribute = [](pbf_writer& item, const char* key, auto&& fill) {
    add_message(item, node_def::kAttribute, [&](pbf_writer& entry) {
      entry.add_string(map_entry::kKey, key);
      add_message(entry, map_entry::kValue, fill);
    });
  };
  for (const GraphNode& node : graph) {
    add_message(definition, graph_def::kNode, [&](pbf_writer& item) {
      item.add_string(node_def::kName, node.name);
      item.add_string(node_def::kOp, node.kind);
      for (const std::string& input : node.inputs) item.add_string(node_def::kInput, input);
      add_attribute(item, "description",
                    [&](pbf_writer& value) { value.add_bytes(attribute_value::kBytes, node.description); });
      add_attribute(item, "parameters",
                    [&](pbf_writer& value) { value.add_int64(attribute_value::kInteger, node.parameters); });
    });
  }
  add_message(definition, graph_def::kVersions,
              [](pbf_writer& version) { version.add_int32(versions::kProducer, kGraphVersion); });
  return make_event(time, [&](pbf_writer& writer) { writer.add_bytes(event::kGraph, bytes); });
}

// For the tab HPARAMS: which parameters and metrics it shows.
std::string experiment_event(EventTime time, const Hyperparameters& parameters,
                             std::span<const std::string> metric_tags) {
  return make_hparams_event(time, "_hparams_/experiment", hparams_data::kExperiment, [&](pbf_writer& writer) {
    for (const auto& [name, parameter] : parameters) {
      add_message(writer, experiment::kParameters,
                  [&, &name = name, &parameter = parameter](pbf_writer& info) {
                    info.add_string(parameter_info::kName, name);
                    info.add_enum(parameter_info::kType, type_of(parameter));
                  });
    }
    for (const std::string& tag : metric_tags) {
      add_message(writer, experiment::kMetrics, [&](pbf_writer& info) {
        add_message(info, metric_info::kName,
                    [&](pbf_writer& name) { name.add_string(metric_name::kTag, tag); });
      });
    }
  });
}

// The values of this run, for the tab HPARAMS.
std::string hyperparameters_event(EventTime time, const Hyperparameters& parameters) {
  return make_hparams_event(
      time, "_hparams_/session_start_info", hparams_data::kSessionStart, [&](pbf_writer& writer) {
        for (const auto& [name, parameter] : parameters) {
          add_message(writer, session_start::kParameters,
                      [&, &name = name, &parameter = parameter](pbf_writer& entry) {
                        entry.add_string(map_entry::kKey, name);
                        add_message(entry, map_entry::kValue,
                                    [&](pbf_writer& held) { add_parameter(held, parameter); });
                      });
        }
        writer.add_double(session_start::kStartTime, time.wall_s);
      });
}

// How the run ended, for the tab HPARAMS.
std::string run_end_event(EventTime time, RunStatus status) {
  return make_hparams_event(
      time, "_hparams_/session_end_info", hparams_data::kSessionEnd, [&](pbf_writer& writer) {
        writer.add_enum(session_end::kStatus, status == RunStatus::kFinished ? kEndSuccess : kEndFailure);
        writer.add_double(session_end::kEndTime, time.wall_s);
      });
}

// --- the tracker ---

// Creates a file with a name that no other file in the folder has.
OutputFile open_event_file(const std::filesystem::path& folder) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  for (int number = 0;; ++number) {
    auto file = OutputFile::create(folder / fmt::format("events.out.tfevents.{:010d}.{}.{}.{}",
                                                        static_cast<int64_t>(seconds_since_1970()),
                                                        host.data(), ::getpid(), number));
    if (file) return std::move(*file);
  }
}

class TensorboardTracker final : public Tracker {
 public:
  explicit TensorboardTracker(const TrackerOptions& options)
      : file_(open_event_file(options.folder)), last_step_(options.resume_step.value_or(0)) {
    append(file_version_event(at(last_step_)));
    append(session_start_event(at(last_step_)));
  }
  ~TensorboardTracker() override {
    try {
      close(RunStatus::kFailed);
    } catch (const std::exception& error) {
      base::log_warning("track", "{}", error.what());
    }
  }

  std::string_view name() const override { return "tensorboard"; }

  void write_scalars(std::span<const Scalar> scalars, int64_t step) override {
    append(scalars_event(at(step), scalars));
    last_step_ = std::max(last_step_, step);
  }

  void write_hyperparameters(const Hyperparameters& parameters, const FinalMetrics& metrics) override {
    // Separate tags: the tab shows the last value of a tag, which may not be the final metric.
    std::vector<std::string> tags;
    for (const auto& [name, value] : metrics) tags.push_back("final/" + name);
    // Without this event TensorBoard shows every scalar of the run.
    if (!metrics.empty()) append(experiment_event(at(last_step_), parameters, tags));
    // TensorBoard uses only the first one of a file.
    if (!has_hyperparameters_) append(hyperparameters_event(at(last_step_), parameters));
    has_hyperparameters_ = true;

    std::vector<Scalar> scalars;
    for (size_t i = 0; const auto& [name, value] : metrics) scalars.push_back({tags[i++], value});
    if (!scalars.empty()) append(scalars_event(at(last_step_), scalars));
  }

  void write_histogram(std::string_view name, const Histogram& histogram, int64_t step) override {
    append(histogram_event(at(step), name, histogram));
  }

  void write_image(std::string_view name, const Image& image, int64_t step) override {
    append(image_event(at(step), name, image));
  }

  void write_text(std::string_view name, std::string_view text, int64_t step) override {
    append(text_event(at(step), name, text));
  }

  void write_graph(const Graph& graph) override { append(graph_event(at(0), graph)); }

  void flush() override { file_.sync(); }

  void close(RunStatus status) override {
    if (closed_) return;
    closed_ = true;
    if (has_hyperparameters_) append(run_end_event(at(last_step_), status));
    file_.close();
  }

 private:
  static EventTime at(int64_t step) { return {seconds_since_1970(), step}; }
  void append(const std::string& event) { file_.append(frame_record(event)); }

  OutputFile file_;
  int64_t last_step_;
  bool has_hyperparameters_ = false;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<Tracker> make_tensorboard_tracker(const TrackerOptions& options) {
  make_folder(options.folder);
  return std::make_unique<TensorboardTracker>(options);
}

}  // namespace lockstep::track
