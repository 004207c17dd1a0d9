#include "track/trackers.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <lockstep/json.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <string>

#include "base/file.h"
#include "track/json_value.h"
#include "track/output_file.h"

namespace lockstep::track {
namespace {

constexpr std::array<std::string_view, 4> kOwnKeys = {"step", "time", "histogram", "text"};

// Whether a run resumed at resume_step keeps this line. A line that this tracker did not write
// belongs to the user and stays.
bool is_before(std::string_view line, int64_t resume_step) {
  const Json object = Json::try_parse(line).value_or(nullptr);
  if (!object.is_object() || !object.contains("step") || !object["step"].is_integer_of<int64_t>())
    return true;
  return object["step"].get<int64_t>() < resume_step;
}

// The complete lines before resume_step. A last line without a line break is incomplete: the run
// ended while writing it.
std::string lines_before(std::string_view content, int64_t resume_step) {
  std::string kept;
  size_t end = 0;
  for (size_t begin = 0; (end = content.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
    const std::string_view line = content.substr(begin, end + 1 - begin);
    if (is_before(line, resume_step)) kept += line;
  }
  return kept;
}

// A new run starts an empty file and renames an old one; a resumed run drops the lines from
// resume_step on.
OutputFile open_jsonl_file(const TrackerOptions& options) {
  const std::filesystem::path path = options.folder / "metrics.jsonl";
  if (options.resume_step) {
    const std::string content = read_file(path);
    const std::string kept = lines_before(content, *options.resume_step);
    if (kept != content) base::publish_file(path, kept);
  } else {
    rename_old_file(path);
  }
  return OutputFile::append_to(path);
}

class JsonlTracker final : public Tracker {
 public:
  explicit JsonlTracker(const TrackerOptions& options) : file_(open_jsonl_file(options)) {}

  std::string_view name() const override { return "jsonl"; }

  void write_scalars(std::span<const Scalar> scalars, int64_t step) override {
    Json line = line_at(step);
    for (const Scalar& scalar : scalars) {
      if (std::find(kOwnKeys.begin(), kOwnKeys.end(), scalar.name) != kOwnKeys.end()) {
        throw ConfigError("track", fmt::format("a metric needs a name other than {}: '{}'",
                                               fmt::join(kOwnKeys, ", "), scalar.name));
      }
      line[std::string(scalar.name)] = json_value(scalar.value);
    }
    append(line);
  }

  void write_hyperparameters(const Hyperparameters& parameters, const FinalMetrics& metrics) override {
    Json line = {{"time", seconds_since_1970()}, {"hyperparameters", Json::object()}};
    for (const auto& [name, value] : parameters) line["hyperparameters"][name] = json_value(value);
    for (const auto& [name, value] : metrics) line["final_metrics"][name] = json_value(value);
    append(line);
  }

  void write_histogram(std::string_view name, const Histogram& histogram, int64_t step) override {
    Json line = line_at(step);
    line["histogram"] = name;
    line["min"] = json_value(histogram.min);
    line["max"] = json_value(histogram.max);
    line["count"] = histogram.count;
    line["sum"] = json_value(histogram.sum);
    line["sum_squares"] = json_value(histogram.sum_squares);
    line["buckets"] = Json::array();
    for (size_t i = 1; i < histogram.bucket_counts.size(); ++i) {
      if (histogram.bucket_counts[i] == 0) continue;
      line["buckets"].push_back(
          {histogram.bucket_limits[i - 1], histogram.bucket_limits[i], histogram.bucket_counts[i]});
    }
    append(line);
  }

  void write_text(std::string_view name, std::string_view text, int64_t step) override {
    Json line = line_at(step);
    line["text"] = name;
    line["content"] = text;
    append(line);
  }

  void flush() override { file_.sync(); }
  void close(RunStatus status) override { file_.close(); }

 private:
  static Json line_at(int64_t step) { return {{"step", step}, {"time", seconds_since_1970()}}; }
  void append(const Json& line) { file_.append(json_text(line) + "\n"); }

  OutputFile file_;
};

}  // namespace

std::unique_ptr<Tracker> make_jsonl_tracker(const TrackerOptions& options) {
  make_folder(options.folder);
  return std::make_unique<JsonlTracker>(options);
}

}  // namespace lockstep::track
