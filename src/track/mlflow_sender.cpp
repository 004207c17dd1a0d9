#include "track/mlflow_sender.h"

#include <lockstep/error.h>
#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/size_text.h"

namespace lockstep::track {
namespace {

constexpr std::chrono::milliseconds kFirstPause{500};
constexpr std::chrono::milliseconds kLongestPause{30'000};
constexpr std::chrono::milliseconds kClosingPause{100};
constexpr int kClosingAttempts = 3;
// Files from this size on may take a time that a user wonders about.
constexpr uintmax_t kBytesToMention = uintmax_t{64} << 20U;

// Signals are for the training's threads.
std::thread start_without_signals(std::function<void()> work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

MlflowSender::MlflowSender(const MlflowSettings& settings) : settings_(settings), api_(settings) {
  thread_ = start_without_signals([this] { run(); });
}

MlflowSender::~MlflowSender() { close(RunStatus::kFailed); }

void MlflowSender::put(std::vector<MlflowMetric> metrics) {
  {
    const std::lock_guard lock(mutex_);
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
    const std::lock_guard lock(mutex_);
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
    const std::lock_guard lock(mutex_);
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
    const std::lock_guard lock(mutex_);
    closing_ = true;
    status_ = status;
    const uintmax_t bytes = waiting_file_bytes();
    if (status == RunStatus::kFinished && bytes >= kBytesToMention && !refused_) {
      base::log_info("track",
                     "the tracker 'mlflow' sends files of {} to its server, the program ends after it",
                     base::size_text(static_cast<int64_t>(bytes)));
    }
  }
  // What is interrupted is about to be killed, and has more to do than this.
  const auto patience =
      status == RunStatus::kFinished ? settings_.close_timeout : std::chrono::milliseconds(0);
  api_.give_up_at(HttpClient::Clock::now() + settings_.close_timeout, patience);
  changed_.notify_one();
  thread_.join();
  report_loss();
}

void MlflowSender::run() {
  while (true) {
    try {
      if (!api_.is_open()) open_run();
      if (!send_next()) return;
      failures_ = 0;
    } catch (const CommError& error) {
      complain("cannot reach its server", error.what());
      if (!wait_after_failure()) return;
    } catch (const std::exception& error) {
      complain("is refused by its server", error.what());
      const std::lock_guard lock(mutex_);
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
    complain("cannot keep the id of its run, a resumed training makes a new run", error.what());
  }
}

bool MlflowSender::send_next() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closing_ || waiting() > 0; });
  }
  if (send_batch(parameters_, MlflowApi::kMaxParameters, &MlflowApi::log_parameters) ||
      send_batch(metrics_, MlflowApi::kMaxMetrics, &MlflowApi::log_metrics) || send_artifact()) {
    return true;
  }
  // Closing, so that nothing comes any more.
  api_.close_run(status_);
  return false;
}

template <typename Item>
bool MlflowSender::send_batch(std::deque<Item>& queue, size_t limit,
                              void (MlflowApi::*send)(std::span<const Item>)) {
  std::vector<Item> batch;
  {
    const std::lock_guard lock(mutex_);
    batch.assign(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(std::min(limit, queue.size())));
  }
  if (batch.empty()) return false;
  send_or_halve(std::span<const Item>(batch), send);
  const std::lock_guard lock(mutex_);
  queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(batch.size()));
  return true;
}

// The server refuses a batch as a whole: halving finds the items that it does not want.
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
      lose(error.what());
    }
  }
}

bool MlflowSender::send_artifact() {
  const MlflowArtifact* artifact = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (artifacts_.empty()) return false;
    artifact = &artifacts_.front();  // stays there: only this thread removes
  }
  try {
    api_.upload(*artifact);
  } catch (const ConfigError& error) {
    lose(error.what());
  }
  const std::lock_guard lock(mutex_);
  artifact_bytes_ -= artifact->bytes.size();
  artifacts_.pop_front();
  return true;
}

bool MlflowSender::wait_after_failure() {
  std::unique_lock lock(mutex_);
  if (closing_) {
    if (++closing_failures_ >= kClosingAttempts) return false;
    changed_.wait_for(lock, kClosingPause, [] { return false; });
  } else {
    const auto pause = std::min(kFirstPause * (1 << std::min(failures_++, 10)), kLongestPause);
    changed_.wait_for(lock, pause, [&] { return closing_; });
  }
  return !api_.has_given_up();
}

void MlflowSender::lose(const std::string& reason) {
  complain("is refused a write", reason);
  const std::lock_guard lock(mutex_);
  ++lost_;
}

void MlflowSender::complain(std::string_view what, std::string_view reason) {
  if (has_complained_) return;
  has_complained_ = true;
  base::log_warning("track", "the tracker 'mlflow' {}, training goes on: {}", what, reason);
}

void MlflowSender::report_loss() {
  const std::lock_guard lock(mutex_);
  const int64_t lost = lost_ + static_cast<int64_t>(waiting());
  if (lost > 0) {
    base::log_info("track", "the tracker 'mlflow' has lost {} values and files that its server did not take",
                   lost);
  }
}

}  // namespace lockstep::track
