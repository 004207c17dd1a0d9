#include "cluster/job_deadline.h"

#include <algorithm>

#include <fmt/format.h>
#include <lockstep/error.h>

#include "base/number.h"
#include "base/process.h"

namespace lockstep::cluster {
namespace {

constexpr char kEndTime[] = "SLURM_JOB_END_TIME";

WallTime since_epoch(int64_t seconds) { return WallTime(std::chrono::seconds(seconds)); }

// Year 2000 to 2200: a number outside is not the time of a job, and 0 means "not set".
bool is_plausible(int64_t seconds) { return seconds >= 946684800 && seconds <= 7258118400; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return text;
}

WallTime read_variable(const std::string& text) {
  const std::optional<int64_t> seconds = base::parse_integer(text);
  if (!seconds || !is_plausible(*seconds)) {
    throw ConfigError("cluster",
                      fmt::format("{} must be seconds since 1970: {}='{}'", kEndTime, kEndTime, text));
  }
  return since_epoch(*seconds);
}

}  // namespace

std::chrono::seconds stop_margin(std::chrono::seconds wanted, std::chrono::system_clock::duration left) {
  const auto tenth = std::chrono::duration_cast<std::chrono::seconds>(left / 10);
  return std::clamp(wanted, std::chrono::seconds(0), std::max(tenth, std::chrono::seconds(0)));
}

std::optional<WallTime> parse_end_time(std::string_view text) {
  const std::optional<int64_t> seconds = base::parse_integer(trimmed(text));
  if (!seconds || !is_plausible(*seconds)) return std::nullopt;
  return since_epoch(*seconds);
}

std::optional<JobDeadline> job_deadline(const base::Environment& environment,
                                        std::optional<std::chrono::seconds> given, WallTime started,
                                        const std::function<std::optional<std::string>()>& ask) {
  // Slurm sets the variable to 0 for a job without limit.
  if (const auto text = environment.get(kEndTime); text && *text != "0") {
    return JobDeadline{read_variable(*text), kEndTime};
  }
  if (given) return JobDeadline{started + *given, "the time limit given"};
  if (!environment.has("SLURM_JOB_ID")) return std::nullopt;
  const std::optional<std::string> answer = ask();
  if (!answer) return std::nullopt;
  const std::optional<WallTime> end = parse_end_time(*answer);
  if (!end) return std::nullopt;
  return JobDeadline{*end, "squeue"};
}

std::optional<std::string> ask_squeue_for_end(const base::Environment& environment) {
  const std::optional<std::string> job = environment.get("SLURM_JOB_ID");
  const std::optional<std::string> squeue = base::find_program("squeue", environment);
  if (!job || !squeue) return std::nullopt;
  base::ProcessOptions options;
  options.program = *squeue;
  options.arguments = {"squeue", "--noheader", "--jobs=" + *job, "--format=%e"};
  options.environment = environment;
  // By default the answer is local time, in a format that the user may have changed.
  options.environment.set("SLURM_TIME_FORMAT", "%s");
  const auto result = base::run_program(options, std::chrono::seconds(10));
  if (!result || !result->state.success()) return std::nullopt;
  return result->output;
}

}  // namespace lockstep::cluster
