#pragma once

#include <lockstep/tracker.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Several trackers as one. Nothing here throws or ends a training: the first write of a
// tracker that fails is said by a warning with the tracker's name and the reason, later
// failures of it are counted in silence. Each write is tried anew, so that a disk that
// has space again is written again; what was lost in between is told at close().
// One thread at a time; owns its trackers.
class TrackerSet {
 public:
  TrackerSet() = default;
  TrackerSet(TrackerSet&&) = default;
  TrackerSet& operator=(TrackerSet&&) = delete;
  // Closes as a failed run what was not closed.
  ~TrackerSet();

  // Opens trackers by name. Unlike writing, opening throws: the user still looks on.
  // ConfigError as of make_tracker(), or a name that comes twice.
  static TrackerSet open(std::span<const std::string> names, const TrackerOptions& options);

  void add(std::unique_ptr<Tracker> tracker);
  bool empty() const { return members_.empty(); }

  void write_scalars(std::span<const Scalar> scalars, int64_t step);
  void write_hyperparameters(const Hyperparameters& parameters, const FinalMetrics& metrics);
  void write_histogram(std::string_view name, const Histogram& histogram, int64_t step);
  void write_image(std::string_view name, const Image& image, int64_t step);
  void write_text(std::string_view name, std::string_view text, int64_t step);
  void write_graph(const Graph& graph);
  void log_artifact(const std::filesystem::path& path);
  void flush();
  void close(RunStatus status);

 private:
  struct Member {
    std::unique_ptr<Tracker> tracker;
    int64_t lost_writes = 0;
  };
  void for_each(const std::function<void(Tracker&)>& write);

  std::vector<Member> members_;
};

}  // namespace lockstep
