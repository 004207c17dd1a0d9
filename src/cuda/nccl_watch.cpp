#include "cuda/nccl_watch.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <future>
#include <memory>

namespace lockstep::cuda {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How often the entries are checked.
constexpr milliseconds kCheckPeriod{50};
// How long the store may take to answer: rank 0, which hosts it, may be the rank that hangs.
constexpr milliseconds kStorePatience{2000};
// How long pending operations may take after a rank has closed its group: this rank's device may
// have much other work first.
constexpr seconds kAfterDeparture{10};

std::string key_of(int rank) { return fmt::format("nccl_started/{}", rank); }
// The cause that the first rank found: the rank that caused it, or -1, and a sentence.
constexpr char kCause[] = "nccl_cause";

std::string text_of(const std::vector<uint8_t>& bytes) { return std::string(bytes.begin(), bytes.end()); }

// The number of collectives that each rank has published; 0 for a rank without a count.
std::vector<uint64_t> read_counts(c10d::Store& store, int size) {
  std::vector<uint64_t> counts;
  for (int rank = 0; rank < size; ++rank) {
    counts.push_back(store.check({key_of(rank)}) ? std::stoull(text_of(store.get(key_of(rank)))) : 0);
  }
  return counts;
}

// Runs the function in a new thread, which is left behind if the store does not answer: the program
// is about to end.
template <typename Function>
auto ask_later(const c10::intrusive_ptr<c10d::Store>& store, Function function) {
  std::packaged_task<decltype(function(*store))()> task([store, function] { return function(*store); });
  auto answer = task.get_future();
  std::thread(std::move(task)).detach();
  return answer;
}

// The function's result, or nullopt if the store does not answer.
template <typename Function>
auto ask(const c10::intrusive_ptr<c10d::Store>& store, Function function)
    -> std::optional<decltype(function(*store))> {
  auto answer = ask_later(store, std::move(function));
  if (answer.wait_for(kStorePatience) != std::future_status::ready) return std::nullopt;
  try {
    return answer.get();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return comm::first_line_of(error);
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace

NcclWatch::NcclWatch(const comm::PluginRequest& request, std::function<void()> abort)
    : request_(request), abort_(std::move(abort)), last_publish_(Clock::now()), thread_([this] { run(); }) {}

std::optional<NcclWatch::Place> NcclWatch::begin(const char* operation, Milliseconds timeout,
                                                 std::optional<int> peer) {
  if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None) {
    return std::nullopt;
  }
  const base::MutexLock lock(mutex_);
  if (!peer) ++started_;
  if (request_.started) request_.started(operation);
  entries_.push_back(Entry{std::nullopt, nullptr, operation, timeout, peer, started_, Clock::now()});
  return std::prev(entries_.end());
}

void NcclWatch::attach(Place place, const c10::intrusive_ptr<c10d::Work>& work) {
  const auto* nccl_work = dynamic_cast<const Work*>(work.get());
  const base::MutexLock lock(mutex_);
  if (nccl_work == nullptr || over_) {
    erase(place);
  } else {
    place->work.emplace(*nccl_work);
  }
}

void NcclWatch::add_stream(const char* operation) {
  auto event = std::make_shared<at::cuda::CUDAEvent>();
  event->record();
  if (const std::optional<Place> place = begin(operation, default_timeout(), std::nullopt)) {
    const base::MutexLock lock(mutex_);
    (*place)->event = std::move(event);
  }
}

bool NcclWatch::has_ended(Entry& entry) {
  if (entry.event) return entry.event->query();
  return entry.work && entry.work->isCompleted();
}

void NcclWatch::forget(Place place) {
  const base::MutexLock lock(mutex_);
  erase(place);
}

NcclWatch::Place NcclWatch::erase(Place place) {
  if (request_.ended) request_.ended();
  return entries_.erase(place);
}

bool NcclWatch::drain() {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(request_.device_index));
  base::MutexLock lock(mutex_);
  // The thread reports and aborts if an entry does not end.
  while (!over_ && !stopping_) {
    if (!check_entries() && entries_.empty()) break;
    changed_.wait_for(lock, milliseconds(1));
  }
  return !request_.failure->failed();
}

void NcclWatch::stop() {
  {
    const base::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  // The group is about to close the store, which publish() uses.
  if (publishing_.valid()) publishing_.wait_for(kStorePatience);
  const base::MutexLock lock(mutex_);
  while (!entries_.empty()) erase(entries_.begin());
}

void NcclWatch::run() {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(request_.device_index));
  // The training thread may record a graph at the same time.
  const c10::cuda::CUDAStreamCaptureModeGuard mode(cudaStreamCaptureModeThreadLocal);
  base::MutexLock lock(mutex_);
  while (!stopping_) {
    const Clock::time_point next_check = Clock::now() + kCheckPeriod;
    while (!stopping_) {
      if (!changed_.wait_until(lock, next_check)) break;
    }
    if (stopping_ || request_.failure->failed()) break;
    std::optional<comm::DeviceFailure::Report> report = check_entries();
    const std::optional<Entry> late = report ? std::nullopt : overdue();
    lock.unlock();
    if (late) {
      report = explain(*late);
    } else if (report && !report->rank) {
      report = with_cause_of_others(std::move(*report));
    }
    if (report) {
      // The report comes first: after an abort the device continues, with invalid results.
      request_.failure->report(std::move(*report));
      try {
        abort_();
      } catch (const std::exception&) {  // it is reported; c10d has printed why
      }
    } else {
      publish();
    }
    lock.lock();
    if (report) break;
  }
  over_ = true;
  changed_.notify_all();
}

std::optional<comm::DeviceFailure::Report> NcclWatch::check_entries() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    std::exception_ptr failure;
    bool completed = false;
    try {
      completed = has_ended(*entry);
      if (entry->work) failure = entry->work->exception();
    } catch (...) {  // an earlier kernel failed
      failure = std::current_exception();
    }
    if (failure) {
      return comm::DeviceFailure::Report{
          fmt::format("{} failed on rank {} of {}, backend nccl: {}", entry->operation, request_.rank,
                      request_.size, text_of(failure)),
          false, std::nullopt};
    }
    entry = completed ? erase(entry) : std::next(entry);
  }
  if (entries_.empty() || !request_.departed) {
    departure_seen_.reset();
    return std::nullopt;
  }
  const std::optional<int> departed = request_.departed();
  if (!departed) return std::nullopt;
  departure_seen_ = departure_seen_.value_or(Clock::now());
  if (Clock::now() < *departure_seen_ + kAfterDeparture) return std::nullopt;
  return comm::DeviceFailure::Report{
      fmt::format("{} failed on rank {} of {}, backend nccl: rank {} has left the job",
                  entries_.front().operation, request_.rank, request_.size, *departed),
      false, departed};
}

std::optional<NcclWatch::Entry> NcclWatch::overdue() const {
  const auto now = Clock::now();
  for (const Entry& entry : entries_) {
    if (now - entry.started > entry.timeout) return entry;
  }
  return std::nullopt;
}

comm::DeviceFailure::Report NcclWatch::explain(const Entry& entry) const {
  const Cause cause = find_cause(entry);
  const std::string published = fmt::format("{} {}", cause.rank.value_or(-1), cause.text);
  ask(request_.store, [published](c10d::Store& store) {
    store.set(kCause, published);
    return true;
  });
  return {fmt::format("{} timed out on rank {} of {}, backend nccl, timeout {} ms: {}", entry.operation,
                      request_.rank, request_.size, entry.timeout.count(), cause.text),
          true, cause.rank};
}

NcclWatch::Cause NcclWatch::find_cause(const Entry& entry) const {
  if (entry.peer) return {entry.peer, fmt::format("rank {} did not take part", *entry.peer)};
  const auto counts =
      ask(request_.store, [size = request_.size](c10d::Store& store) { return read_counts(store, size); });
  if (!counts) {
    return {std::nullopt,
            "a peer did not take part; the store, which rank 0 hosts unless torchrun does, does not answer "
            "which one"};
  }
  std::vector<int> missing;
  for (int rank = 0; rank < request_.size; ++rank) {
    if (rank != request_.rank && (*counts)[static_cast<size_t>(rank)] < entry.index) missing.push_back(rank);
  }
  if (missing.empty()) return {std::nullopt, "all ranks have started it, and it does not end"};
  if (missing.size() == 1) {
    return {missing.front(), fmt::format("rank {} did not take part", missing.front())};
  }
  return {std::nullopt, fmt::format("ranks {} did not take part", fmt::join(missing, ", "))};
}

comm::DeviceFailure::Report NcclWatch::with_cause_of_others(comm::DeviceFailure::Report report) const {
  const auto published = ask(request_.store, [](c10d::Store& store) {
    return store.check({kCause}) ? text_of(store.get(kCause)) : std::string();
  });
  if (!published || published->empty()) return report;
  const size_t space = published->find(' ');
  const int rank = std::stoi(published->substr(0, space));
  report.text += fmt::format("; a rank that waited before gave up: {}", published->substr(space + 1));
  report.timed_out = true;  // no rank died
  if (rank >= 0) report.rank = rank;
  return report;
}

void NcclWatch::publish() {
  // Never blocks: this thread has to notice timeouts, also those that the store's host causes.
  if (request_.size == 1) return;
  if (publishing_.valid() && publishing_.wait_for(seconds(0)) != std::future_status::ready) return;
  uint64_t count = 0;
  {
    const base::MutexLock lock(mutex_);
    milliseconds shortest = request_.timeout;
    for (const Entry& entry : entries_) shortest = std::min(shortest, entry.timeout);
    const auto every = std::clamp<milliseconds>(shortest / 5, milliseconds(100), seconds(10));
    if (started_ == published_ || Clock::now() < last_publish_ + every) return;
    count = started_;
    published_ = count;
    last_publish_ = Clock::now();
  }
  publishing_ = ask_later(request_.store, [key = key_of(request_.rank), count](c10d::Store& store) {
    store.set(key, std::to_string(count));  // if rank 0, which hosts the store, is gone, no rank reads it
  });
}

}  // namespace lockstep::cuda
