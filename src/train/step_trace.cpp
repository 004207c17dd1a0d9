#include "train/step_trace.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <lockstep/json.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <set>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "base/number.h"
#include "base/progress.h"
#include "base/trace.h"

namespace lockstep::train {
namespace {

using base::Trace;

struct OperatorStart : at::ObserverContext {
  Trace::Clock::time_point begin = Trace::Clock::now();
};

double microseconds(Trace::Clock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

constexpr const char* kStepCategory = "step";
constexpr const char* kModuleCategory = "module";
// More than any id of a thread, and the same for all ranks.
constexpr int kFirstCollectiveRow = 1 << 23;
// TensorBoard finds the time that a step waits for data by this name, which PyTorch's loader has.
constexpr const char* kDataWait = "enumerate(DataLoader)#data.__next__";

bool is(const Trace::Span& span, std::string_view category) { return span.category == category; }

// The categories of PyTorch's profiler.
const char* category_of(const Trace::Span& span) {
  return is(span, "phase") || is(span, kStepCategory) || is(span, kModuleCategory) ? "user_annotation"
                                                                                   : "cpu_op";
}

// A complete event. Those of one row must nest.
Json event_of(const Trace::Span& span, int rank, int row, int64_t number) {
  return {{"name", span.name},
          {"cat", category_of(span)},
          {"ph", "X"},
          {"pid", rank},
          {"tid", row},
          {"ts", microseconds(span.begin)},
          {"dur", microseconds(span.end) - microseconds(span.begin)},
          {"args", {{"External id", number}}}};
}

// As in PyTorch's traces a step lasts until the next one begins. A phase that began in the step before ends
// there, and one that goes on after the last step begins at its end.
void nest_in_steps(std::vector<Trace::Span>& spans) {
  std::vector<Trace::Span*> steps;
  for (Trace::Span& span : spans) {
    if (is(span, kStepCategory)) steps.push_back(&span);
  }
  for (size_t i = 0; i + 1 < steps.size(); ++i) steps[i]->end = steps[i + 1]->begin;
  for (Trace::Span& phase : spans) {
    if (!is(phase, "phase") || steps.empty()) continue;
    for (const Trace::Span* step : steps) {
      if (phase.begin < step->begin && phase.end > step->begin) phase.end = step->begin;
    }
    const Trace::Span& last = *steps.back();
    if (phase.begin < last.end && phase.end > last.end) phase.begin = last.end;
  }
}

// Collectives that run at the same time are in rows of their own.
class CollectiveRows {
 public:
  int row_of(const Trace::Span& span) {
    const auto free = std::find_if(ends_.begin(), ends_.end(), [&](auto end) { return end <= span.begin; });
    const auto row = static_cast<int>(free - ends_.begin());
    if (free == ends_.end()) {
      ends_.push_back(span.end);
    } else {
      *free = span.end;
    }
    return kFirstCollectiveRow + row;
  }

 private:
  std::vector<Trace::Clock::time_point> ends_;
};

Json metadata(const char* what, int rank, int thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

}  // namespace

std::optional<std::pair<int64_t, int64_t>> parse_trace_steps(const std::string& text) {
  const size_t colon = text.find(':');
  const auto first = base::parse_integer(text.substr(0, colon));
  const auto last = colon == std::string::npos ? first : base::parse_integer(text.substr(colon + 1));
  if (!first || !last || *first < 1 || *last < *first) return std::nullopt;
  return std::pair(*first, *last);
}

struct StepTrace::Operators {
  Operators()
      : handle_(
            at::addGlobalCallback(at::RecordFunctionCallback(start, end)
                                      .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                                               at::RecordScope::USER_SCOPE}))) {}
  ~Operators() { at::removeCallback(handle_); }
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;

  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction&) {
    return std::make_unique<OperatorStart>();
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    if (context == nullptr) return;
    // Exported models open a scope for the module of each operator, Gloo one for each collective.
    const std::string_view name = function.name();
    const bool is_module =
        function.scope() == at::RecordScope::USER_SCOPE && name.find(':') == std::string_view::npos;
    if (is_module && name.empty()) return;  // the model itself
    Trace::of_process().add(is_module ? kModuleCategory : "operator", function.name(),
                            static_cast<OperatorStart*>(context)->begin);
  }

  at::CallbackHandle handle_;
};

StepTrace::StepTrace(const std::string& steps, const std::filesystem::path& folder, int rank, int world_size,
                     std::string backend)
    : steps_(parse_trace_steps(steps)),
      file_(folder / fmt::format("rank{}.pt.trace.json", rank)),
      rank_(rank),
      world_size_(world_size),
      backend_(std::move(backend)) {}

StepTrace::~StepTrace() {
  if (!operators_) return;
  try {
    stop();
  } catch (const std::exception& error) {
    base::log_warning("train", "the trace is not written: {}", error.what());
  }
}

void StepTrace::before(int64_t step) {
  if (!steps_ || step < steps_->first || step > steps_->second) return;
  if (!operators_) {
    Trace::of_process().start();
    operators_ = std::make_unique<Operators>();
  }
  step_began_ = Trace::Clock::now();
}

void StepTrace::after(int64_t step) {
  if (first_step_ == 0) first_step_ = step;
  last_step_ = step;
  if (!operators_) return;
  Trace::of_process().add(kStepCategory, fmt::format("ProfilerStep#{}", step), step_began_);
  if (step >= steps_->second) stop();
}

void StepTrace::finish() {
  if (!steps_) return;
  if (operators_) stop();
  if (is_written_ || rank_ != 0) return;
  base::log_warning("train", "no trace is written: trace_steps is {}:{}, and {}", steps_->first,
                    steps_->second,
                    first_step_ == 0 ? "no step was trained"
                                     : fmt::format("steps {} to {} were trained", first_step_, last_step_));
}

void StepTrace::stop() {
  operators_.reset();
  if (last_step_ >= steps_->first) {
    write();
  } else {
    Trace::of_process().stop();  // the first step had no batches
  }
}

void StepTrace::write() {
  is_written_ = true;
  Json events = Json::array();
  events.push_back(metadata("process_name", rank_, 0, fmt::format("rank {}", rank_)));
  const int main_thread = ::gettid();
  events.push_back(metadata("thread_name", rank_, main_thread, "training"));
  std::set<int> threads{main_thread};
  std::vector<Trace::Span> spans = Trace::of_process().stop();
  nest_in_steps(spans);
  // Outer events first, also of those that begin together.
  std::stable_sort(spans.begin(), spans.end(), [](const Trace::Span& a, const Trace::Span& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  CollectiveRows collectives;
  int64_t number = 0;
  for (Trace::Span& span : spans) {
    const int row = span.overlaps ? collectives.row_of(span) : span.thread;
    if (threads.insert(row).second) {
      events.push_back(
          metadata("thread_name", rank_, row, span.overlaps ? "collectives" : fmt::format("thread {}", row)));
    }
    // TensorBoard knows collectives by the names of these two backends only.
    if (span.overlaps) span.name = (backend_ == "nccl" ? "nccl:" : "gloo:") + span.name;
    events.push_back(event_of(span, rank_, row, ++number));
    if (is(span, "phase") && span.name == base::to_string(base::Phase::kData)) {
      span.name = kDataWait;
      span.category = "operator";
      events.push_back(event_of(span, rank_, row, ++number));
    }
  }
  const Json trace = {
      {"schemaVersion", 1},
      {"deviceProperties", Json::array()},
      {"distributedInfo", {{"backend", backend_}, {"rank", rank_}, {"world_size", world_size_}}},
      {"displayTimeUnit", "ms"},
      {"traceEvents", std::move(events)}};
  try {
    base::publish_file(file_, trace.dump() + "\n");
    base::log_info("train", "the trace of steps {} to {} is in {}", std::max(first_step_, steps_->first),
                   std::min(last_step_, steps_->second), file_.string());
  } catch (const std::exception& error) {
    base::log_warning("train", "the trace is not written: {}", error.what());
  }
}

}  // namespace lockstep::train
