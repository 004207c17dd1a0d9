#include "track/tensorboard_tracker.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <exception>
#include <vector>

#include "base/log.h"
#include "track/clock.h"
#include "track/crc32c.h"
#include "track/output_file.h"
#include "track/tensorboard_events.h"

namespace lockstep::track {
namespace {

template <typename T>
void append_little_endian(std::string& bytes, T value) {
  static_assert(std::endian::native == std::endian::little);
  std::array<char, sizeof(T)> raw;
  std::memcpy(raw.data(), &value, sizeof(T));
  bytes.append(raw.data(), raw.size());
}

// Of a name that no other file in the folder has.
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
    // Tags of their own: the tab shows a tag's last value, which need not be the final one.
    std::vector<std::string> tags;
    for (const auto& [name, value] : metrics) tags.push_back("final/" + name);
    // Without it TensorBoard shows every scalar of the run.
    if (!metrics.empty()) append(experiment_event(at(last_step_), parameters, tags));
    // TensorBoard takes the first one of a file.
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

std::string frame_record(std::string_view record) {
  std::string length;
  append_little_endian(length, uint64_t{record.size()});
  std::string bytes = length;
  append_little_endian(bytes, masked_crc32c(length));
  bytes.append(record);
  append_little_endian(bytes, masked_crc32c(record));
  return bytes;
}

std::unique_ptr<Tracker> make_tensorboard_tracker(const TrackerOptions& options) {
  make_folder(options.folder);
  return std::make_unique<TensorboardTracker>(options);
}

}  // namespace lockstep::track
