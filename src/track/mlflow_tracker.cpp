#include <fmt/format.h>
#include <lockstep/error.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>
#include "base/folder.h"

#include "base/log.h"
#include "base/mutex.h"
#include "base/number.h"
#include "track/mlflow.h"
#include "track/png.h"
#include "track/trackers.h"

namespace lockstep::track {
namespace {

constexpr std::chrono::milliseconds kFirstPause{500};
constexpr std::chrono::milliseconds kLongestPause{30'000};
constexpr std::chrono::milliseconds kClosingPause{100};
constexpr int kClosingAttempts = 3;
// Uploads from this size on delay the end of the program noticeably: close() logs them.
constexpr uintmax_t kBytesToMention = uintmax_t{64} << 20U;

// Limits of the queue; items beyond them are dropped.
constexpr size_t kMaxWaitingMetrics = 100'000;
constexpr size_t kMaxWaitingArtifacts = 10'000;
constexpr size_t kMaxWaitingBytes = size_t{256} << 20U;

// The training's threads handle all signals.
std::thread start_without_signals(std::function<void()> work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

template <typename Item>
std::vector<Item> first_items(const std::deque<Item>& queue, size_t limit) {
  return {queue.begin(), queue.begin() + static_cast<ptrdiff_t>(std::min(limit, queue.size()))};
}

template <typename Item>
void drop_first_items(std::deque<Item>& queue, size_t count) {
  queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(count));
}

// The queue between a training and an MLflow server, and the thread that sends its items. The
// public functions are for one thread and return at once, except close().
class MlflowSender {
 public:
  explicit MlflowSender(const MlflowSettings& settings);
  // Closes as a failed run.
  ~MlflowSender();

  void put(std::vector<MlflowMetric> metrics);
  void put(std::vector<MlflowParameter> parameters);
  void put(MlflowArtifact artifact);

  // Sends the queued items and the status of the run, and joins the thread: within
  // settings.close_timeout plus about a second. The uploads of a finished run may take longer,
  // as long as they make progress within close_timeout; a run that failed or was interrupted
  // does not wait for them. Later calls do nothing.
  void close(RunStatus status);

 private:
  // These run in the background thread.
  void run();
  void open_run();
  // Waits for an item and sends it; false: the run is closed.
  bool send_next();
  template <typename Item>
  void send_or_halve(std::span<const Item> items, void (MlflowApi::*send)(std::span<const Item>));
  bool send_artifact();
  // Pauses before a retry; false: no time is left for one.
  bool wait_after_failure();
  void count_rejected(const std::string& reason);
  // Only the first problem is logged.
  void warn_once(std::string_view what, std::string_view reason);

  size_t waiting() const LOCKSTEP_REQUIRES(mutex_) {
    return metrics_.size() + parameters_.size() + artifacts_.size();
  }
  uintmax_t waiting_file_bytes() const LOCKSTEP_REQUIRES(mutex_);
  void log_lost_items();

  const MlflowSettings settings_;

  // Used only by the background thread, except for the thread-safe give_up_at().
  MlflowApi api_;
  int failures_ = 0;  // since the last success
  int closing_failures_ = 0;
  bool has_warned_ = false;

  base::Mutex mutex_;
  base::Condition changed_;
  // Only the background thread removes items, from the front.
  std::deque<MlflowMetric> metrics_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<MlflowParameter> parameters_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<MlflowArtifact> artifacts_ LOCKSTEP_GUARDED_BY(mutex_);
  size_t artifact_bytes_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  int64_t lost_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool refused_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // the server rejected the run
  bool closing_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  RunStatus status_ LOCKSTEP_GUARDED_BY(mutex_) = RunStatus::kFailed;  // valid if closing_

  std::thread thread_;
};

MlflowSender::MlflowSender(const MlflowSettings& settings) : settings_(settings), api_(settings) {
  thread_ = start_without_signals([this] { run(); });
}

MlflowSender::~MlflowSender() { close(RunStatus::kFailed); }

void MlflowSender::put(std::vector<MlflowMetric> metrics) {
  {
    const base::MutexLock lock(mutex_);
    if (refused_ || metrics_.size() + metrics.size() > kMaxWaitingMetrics) {
      lost_ += static_cast<int64_t>(metrics.size());
      return;
    }
    std::move(metrics.begin(), metrics.end(), std::back_inserter(metrics_));
  }
  changed_.notify_one();
}

void MlflowSender::put(std::vector<MlflowParameter> parameters) {
  {
    const base::MutexLock lock(mutex_);
    if (refused_) {
      lost_ += static_cast<int64_t>(parameters.size());
      return;
    }
    std::move(parameters.begin(), parameters.end(), std::back_inserter(parameters_));
  }
  changed_.notify_one();
}

void MlflowSender::put(MlflowArtifact artifact) {
  {
    const base::MutexLock lock(mutex_);
    if (refused_ || artifacts_.size() >= kMaxWaitingArtifacts ||
        artifact_bytes_ + artifact.bytes.size() > kMaxWaitingBytes) {
      ++lost_;
      return;
    }
    artifact_bytes_ += artifact.bytes.size();
    artifacts_.push_back(std::move(artifact));
  }
  changed_.notify_one();
}

uintmax_t MlflowSender::waiting_file_bytes() const {
  uintmax_t bytes = 0;
  for (const MlflowArtifact& artifact : artifacts_) {
    std::error_code error;
    const uintmax_t size = artifact.file.empty() ? 0 : std::filesystem::file_size(artifact.file, error);
    if (!error) bytes += size;
  }
  return bytes;
}

void MlflowSender::close(RunStatus status) {
  if (!thread_.joinable()) return;
  {
    const base::MutexLock lock(mutex_);
    closing_ = true;
    status_ = status;
    const uintmax_t bytes = waiting_file_bytes();
    if (status == RunStatus::kFinished && bytes >= kBytesToMention && !refused_) {
      base::log_info("track", "the tracker 'mlflow' uploads {} to its server before the program ends",
                     base::size_text(static_cast<int64_t>(bytes)));
    }
  }
  // An interrupted run will be killed soon and has more important things to save.
  const auto extension =
      status == RunStatus::kFinished ? settings_.close_timeout : std::chrono::milliseconds(0);
  api_.give_up_at(HttpClient::Clock::now() + settings_.close_timeout, extension);
  changed_.notify_one();
  thread_.join();
  log_lost_items();
}

void MlflowSender::run() {
  while (true) {
    try {
      if (!api_.is_open()) open_run();
      if (!send_next()) return;
      failures_ = 0;
    } catch (const CommError& error) {
      warn_once("cannot reach its server", error.what());
      if (!wait_after_failure()) return;
    } catch (const std::exception& error) {
      warn_once("was rejected by its server", error.what());
      const base::MutexLock lock(mutex_);
      refused_ = true;
      return;
    }
  }
}

void MlflowSender::open_run() {
  api_.open_run();
  try {
    save_run_id(settings_, api_.run_id());
  } catch (const ConfigError& error) {
    warn_once("cannot save the id of its run, a resumed training will create a new run", error.what());
  }
}

bool MlflowSender::send_next() {
  std::vector<MlflowParameter> parameters;
  std::vector<MlflowMetric> metrics;
  RunStatus status = RunStatus::kFailed;
  {
    base::MutexLock lock(mutex_);
    while (!closing_ && waiting() == 0) changed_.wait(lock);
    parameters = first_items(parameters_, MlflowApi::kMaxParameters);
    if (parameters.empty()) metrics = first_items(metrics_, MlflowApi::kMaxMetrics);
    status = status_;
  }
  // Items leave the queue after they were sent: a retry sends them again.
  if (!parameters.empty()) {
    send_or_halve(std::span<const MlflowParameter>(parameters), &MlflowApi::log_parameters);
    const base::MutexLock lock(mutex_);
    drop_first_items(parameters_, parameters.size());
    return true;
  }
  if (!metrics.empty()) {
    send_or_halve(std::span<const MlflowMetric>(metrics), &MlflowApi::log_metrics);
    const base::MutexLock lock(mutex_);
    drop_first_items(metrics_, metrics.size());
    return true;
  }
  if (send_artifact()) return true;
  // The queue is empty and closing_ is set: nothing is added any more.
  api_.close_run(status);
  return false;
}

// The server rejects a batch as a whole: halving finds the items that it does not accept.
template <typename Item>
void MlflowSender::send_or_halve(std::span<const Item> items,
                                 void (MlflowApi::*send)(std::span<const Item>)) {
  try {
    (api_.*send)(items);
  } catch (const ConfigError& error) {
    if (items.size() > 1) {
      send_or_halve(items.first(items.size() / 2), send);
      send_or_halve(items.subspan(items.size() / 2), send);
    } else {
      count_rejected(error.what());
    }
  }
}

bool MlflowSender::send_artifact() {
  const MlflowArtifact* artifact = nullptr;
  {
    const base::MutexLock lock(mutex_);
    if (artifacts_.empty()) return false;
    artifact = &artifacts_.front();  // stays valid: only this thread removes items
  }
  try {
    api_.upload(*artifact);
  } catch (const ConfigError& error) {
    count_rejected(error.what());
  }
  const base::MutexLock lock(mutex_);
  artifact_bytes_ -= artifact->bytes.size();
  artifacts_.pop_front();
  return true;
}

bool MlflowSender::wait_after_failure() {
  const auto now = std::chrono::steady_clock::now();
  base::MutexLock lock(mutex_);
  if (closing_) {
    if (++closing_failures_ >= kClosingAttempts) return false;
    while (changed_.wait_until(lock, now + kClosingPause)) {
    }
  } else {
    const auto pause = std::min(kFirstPause * (1 << std::min(failures_++, 10)), kLongestPause);
    while (!closing_ && changed_.wait_until(lock, now + pause)) {
    }
  }
  return !api_.has_given_up();
}

void MlflowSender::count_rejected(const std::string& reason) {
  warn_once("had a write rejected by its server", reason);
  const base::MutexLock lock(mutex_);
  ++lost_;
}

void MlflowSender::warn_once(std::string_view what, std::string_view reason) {
  if (has_warned_) return;
  has_warned_ = true;
  base::log_warning("track", "the tracker 'mlflow' {}, training continues: {}", what, reason);
}

void MlflowSender::log_lost_items() {
  const base::MutexLock lock(mutex_);
  const int64_t lost = lost_ + static_cast<int64_t>(waiting());
  if (lost > 0) {
    base::log_info("track", "the tracker 'mlflow' has lost {} values and files that its server did not take",
                   lost);
  }
}

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
    // Separate keys: the final value of a metric may not be its last one.
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
    put_files_below(folder, folder);
  }

  void close(RunStatus status) override { sender_.close(status); }

 private:
  void put_files_below(const std::filesystem::path& folder, const std::filesystem::path& root) {
    std::error_code error;
    for (const base::FolderEntry& entry : base::list_folder(folder, error)) {
      if (entry.is_folder()) {
        if (!entry.is_link()) put_files_below(entry.path(), root);
      } else if (entry.is_file()) {
        sender_.put(MlflowArtifact{.name = root.filename() / entry.path().lexically_relative(root),
                                   .file = entry.path(),
                                   .bytes = {}});
      }
    }
    if (error) {
      throw ConfigError("track", fmt::format("cannot read the folder '{}' to keep it with the run: {}",
                                             folder.string(), error.message()));
    }
  }

  MlflowSender sender_;
  int64_t last_step_ = 0;
  bool has_parameters_ = false;  // they are on the server or in the queue
};

}  // namespace

std::unique_ptr<Tracker> make_mlflow_tracker(const MlflowSettings& settings) {
  return std::make_unique<MlflowTracker>(settings);
}

}  // namespace lockstep::track
