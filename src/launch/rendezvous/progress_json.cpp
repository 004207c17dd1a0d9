#include "launch/rendezvous/progress_json.h"

#include <algorithm>
#include <string>

#include "launch/rendezvous/fields.h"
#include "launch/rendezvous/frame.h"
#include "launch/rendezvous/job_json.h"

namespace lockstep::launcher::wire {
namespace {

constexpr size_t kMaxOperation = 16;
constexpr int64_t kMaxIdleMs = INT64_MAX / 1'000'000;

// A worker writes its page as it likes.
int64_t bounded(uint64_t number) { return static_cast<int64_t>(std::min<uint64_t>(number, INT64_MAX)); }

RankView worker_from(const Json& object) {
  const Fields fields(object);
  RankView worker;
  worker.ended = fields.boolean("ended");
  worker.progress.told = fields.boolean("told");
  worker.progress.phase =
      static_cast<base::Phase>(fields.integer("phase", 0, static_cast<int64_t>(UINT32_MAX)));
  worker.progress.step = fields.integer("step", INT64_MIN, INT64_MAX);
  worker.progress.collectives_started = static_cast<uint64_t>(fields.integer("started", 0, INT64_MAX));
  worker.progress.collectives_finished = static_cast<uint64_t>(fields.integer("finished", 0, INT64_MAX));
  worker.progress.operation = fields.text("operation", 3 * kMaxOperation);
  worker.progress.idle_ns = fields.integer("idle_ms", 0, kMaxIdleMs) * 1'000'000;
  return worker;
}

}  // namespace

Json to_json(const std::vector<RankView>& workers) {
  Json array = Json::array();
  if (workers.size() > kMaxWorkers) return array;
  for (const RankView& worker : workers) {
    const base::ProgressWatch::Snapshot& progress = worker.progress;
    array.push_back({{"ended", worker.ended},
                     {"told", progress.told},
                     {"phase", static_cast<uint32_t>(progress.phase)},
                     {"step", progress.step},
                     {"started", bounded(progress.collectives_started)},
                     {"finished", bounded(progress.collectives_finished)},
                     {"operation", cut(progress.operation, kMaxOperation)},
                     {"idle_ms", std::clamp<int64_t>(progress.idle_ns / 1'000'000, 0, kMaxIdleMs)}});
  }
  return array;
}

std::vector<RankView> workers_from(const Json& array) {
  std::vector<RankView> workers;
  workers.reserve(array.size());
  for (const Json& object : array) workers.push_back(worker_from(object));
  return workers;
}

Json to_json(const Stall& stall) {
  const size_t count = std::min(stall.missing.size(), kMaxMissing);
  return {{"report", cut(stall.report, kMaxReport)},
          {"missing", std::vector<int>(stall.missing.begin(),
                                       stall.missing.begin() + static_cast<std::ptrdiff_t>(count))}};
}

Stall stall_from(const Json& object) {
  const Fields fields(object);
  Stall stall;
  stall.report = fields.text("report", 3 * kMaxReport);
  for (const Json& rank : fields.array("missing", kMaxMissing)) {
    if (!rank.is_number_integer() || rank.get<int64_t>() < 0 || rank.get<int64_t>() > INT32_MAX) {
      throw ProtocolError("a missing rank that is none");
    }
    stall.missing.push_back(static_cast<int>(rank.get<int64_t>()));
  }
  return stall;
}

}  // namespace lockstep::launcher::wire
