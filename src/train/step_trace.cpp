#include "train/step_trace.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <lockstep/json.h>
#include <unistd.h>

#include <exception>
#include <set>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "base/number.h"
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

// Complete events ("X") of one thread nest. Others are pairs ("b", "e") with a number, and get a row of their
// own.
void append(Json& events, const Trace::Span& span, int rank, int64_t number) {
  const double begin = microseconds(span.begin);
  const double end = microseconds(span.end);
  Json event = {
      {"name", span.name}, {"cat", span.category}, {"pid", rank}, {"tid", span.thread}, {"ts", begin}};
  if (!span.overlaps) {
    event["ph"] = "X";
    event["dur"] = end - begin;
    events.push_back(std::move(event));
    return;
  }
  event["ph"] = "b";
  event["id"] = number;
  events.push_back(event);
  event["ph"] = "e";
  event["ts"] = end;
  events.push_back(std::move(event));
}

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
    Trace::of_process().add("operator", function.name(), static_cast<OperatorStart*>(context)->begin);
  }

  at::CallbackHandle handle_;
};

StepTrace::StepTrace(const std::string& steps, std::filesystem::path folder, int rank)
    : steps_(parse_trace_steps(steps)),
      file_(std::move(folder) / fmt::format("trace_rank{}.json", rank)),
      rank_(rank) {}

StepTrace::~StepTrace() {
  if (operators_) Trace::of_process().stop();
}

void StepTrace::before(int64_t step) {
  if (!steps_ || operators_ || step < steps_->first || step > steps_->second) return;
  Trace::of_process().start();
  operators_ = std::make_unique<Operators>();
}

void StepTrace::after(int64_t step) {
  if (!operators_ || step < steps_->second) return;
  operators_.reset();
  write();
}

void StepTrace::write() {
  Json events = Json::array();
  events.push_back(metadata("process_name", rank_, 0, fmt::format("rank {}", rank_)));
  const int main_thread = ::gettid();
  events.push_back(metadata("thread_name", rank_, main_thread, "training"));
  std::set<int> threads{main_thread};
  int64_t number = 0;
  for (const Trace::Span& span : Trace::of_process().stop()) {
    if (threads.insert(span.thread).second) {
      events.push_back(metadata("thread_name", rank_, span.thread, fmt::format("thread {}", span.thread)));
    }
    append(events, span, rank_, number++);
  }
  const Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  try {
    base::publish_file(file_, trace.dump() + "\n");
    base::log_info("train", "the trace of steps {} to {} is in {}", steps_->first, steps_->second,
                   file_.string());
  } catch (const std::exception& error) {
    base::log_warning("train", "the trace is not written: {}", error.what());
  }
}

}  // namespace lockstep::train
