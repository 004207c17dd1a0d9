#include "launch/slurm/job_record.h"

#include <lockstep/exit_status.h>

#include <algorithm>
#include <array>

#include "base/number.h"

namespace lockstep::launcher {
namespace {

// The text between `key` and `end`; "" where the key is missing. The key has to stand
// at the beginning of a line or after a space.
std::string_view field(std::string_view record, std::string_view key, char end) {
  for (size_t at = record.find(key); at != std::string_view::npos; at = record.find(key, at + 1)) {
    if (at > 0 && record[at - 1] != ' ' && record[at - 1] != '\n') continue;
    const std::string_view rest = record.substr(at + key.size());
    return rest.substr(0, rest.find_first_of(end == '\n' ? "\n" : " \n"));
  }
  return "";
}

JobRecord parse_record(std::string_view text) {
  // The first line holds the job's name, which may look like anything.
  const std::string_view first = text.substr(0, text.find('\n'));
  text.remove_prefix(first.size());
  JobRecord record;
  record.task = field(first.substr(0, first.find(" JobName=")), "ArrayTaskId=", ' ');
  record.state = field(text, "JobState=", ' ');
  record.log_path = field(text, "StdOut=", '\n');
  const std::string_view exit = field(text, "ExitCode=", ' ');
  const size_t colon = exit.find(':');
  if (colon != std::string_view::npos) {
    record.exit_code = static_cast<int>(base::parse_integer(exit.substr(0, colon)).value_or(kExitFailure));
    record.exit_signal = static_cast<int>(base::parse_integer(exit.substr(colon + 1)).value_or(0));
  }
  return record;
}

}  // namespace

bool JobRecord::has_log() const {
  // One record of an array stands for all tasks that wait, with a path of none of them.
  return !log_path.empty() && log_path.find('%') == std::string::npos &&
         !(state == "PENDING" && !task.empty());
}

bool JobRecord::ended() const {
  constexpr std::array<std::string_view, 10> kFinal{"COMPLETED", "FAILED",        "CANCELLED", "TIMEOUT",
                                                    "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE",
                                                    "PREEMPTED", "REVOKED"};
  return std::find(kFinal.begin(), kFinal.end(), state) != kFinal.end();
}

int JobRecord::status() const {
  if (exit_signal != 0) return 128 + exit_signal;
  if (exit_code != 0) return exit_code;
  return state == "COMPLETED" ? kExitSuccess : kExitFailure;
}

std::vector<JobRecord> parse_job_records(std::string_view text) {
  std::vector<JobRecord> records;
  size_t begin = text.substr(0, 6) == "JobId=" ? 0 : std::string_view::npos;
  while (begin != std::string_view::npos) {
    // Only a record's first line is not indented.
    const size_t next = text.find("\nJobId=", begin);
    records.push_back(parse_record(text.substr(begin, next - begin)));
    begin = next == std::string_view::npos ? next : next + 1;
  }
  return records;
}

}  // namespace lockstep::launcher
