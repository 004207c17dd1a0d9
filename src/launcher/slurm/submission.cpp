#include "launcher/slurm/submission.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/log.h"
#include "base/number.h"
#include "base/process.h"
#include "base/unique_fd.h"

namespace lockstep::launcher {
namespace {

// Reads a file that another process writes, from its beginning, even before it exists.
class LogFollower {
 public:
  explicit LogFollower(std::string path) : path_(std::move(path)) {}

  // What was written since the last call; "" if nothing was, or the file does not exist yet.
  std::string read_new() {
    if (!file_) file_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    std::string text;
    if (!file_) return text;
    char buffer[16384];
    while (true) {
      const ssize_t got = ::read(file_.get(), buffer, sizeof buffer);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return text;
      text.append(buffer, static_cast<size_t>(got));
    }
  }

 private:
  std::string path_;
  base::UniqueFd file_;
};

// The text between `key` and `end`; "" if the key is missing. The key must be at the beginning of
// a line or after a space.
std::string_view field(std::string_view record, std::string_view key, char end) {
  for (size_t at = record.find(key); at != std::string_view::npos; at = record.find(key, at + 1)) {
    if (at > 0 && record[at - 1] != ' ' && record[at - 1] != '\n') continue;
    const std::string_view rest = record.substr(at + key.size());
    return rest.substr(0, rest.find_first_of(end == '\n' ? "\n" : " \n"));
  }
  return "";
}

// "00:01:30" or "1-02:00:00"; 0: another text.
double seconds_of(std::string_view text) {
  double days = 0;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    days = static_cast<double>(base::parse_integer(text.substr(0, dash)).value_or(0));
    text.remove_prefix(dash + 1);
  }
  double seconds = 0;
  while (!text.empty()) {
    const size_t colon = text.find(':');
    seconds = 60 * seconds + static_cast<double>(base::parse_integer(text.substr(0, colon)).value_or(0));
    text.remove_prefix(colon == std::string_view::npos ? text.size() : colon + 1);
  }
  return 86400 * days + seconds;
}

JobRecord parse_record(std::string_view text) {
  // The first line holds the job's name, which may look like anything.
  const std::string_view first = text.substr(0, text.find('\n'));
  text.remove_prefix(first.size());
  JobRecord record;
  record.task = field(first.substr(0, first.find(" JobName=")), "ArrayTaskId=", ' ');
  record.state = field(text, "JobState=", ' ');
  record.log_path = field(text, "StdOut=", '\n');
  record.seconds = seconds_of(field(text, "RunTime=", ' '));
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

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// slurmctld serves a whole site: the log is read often, but the controller is asked rarely, the
// more rarely the longer the job takes.
constexpr milliseconds kLogInterval{200};
constexpr milliseconds kShortestPause{400};
constexpr milliseconds kLongestPollPause{5000};
// A busy controller may not answer for a while: this many failed queries in a row are allowed.
constexpr int kMaxFailedQueries = 30;

std::string without_newlines(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

base::ProcessOptions slurm_program(const std::string& name, const base::Environment& environment) {
  const std::optional<std::string> path = base::find_program(name, environment);
  if (!path) {
    throw ConfigError("slurm",
                      fmt::format("{} is not in PATH: without it the script can be printed, not sent", name));
  }
  base::ProcessOptions options;
  options.program = *path;
  options.arguments = {name};
  options.environment = environment;
  return options;
}

// The script as an unnamed file, which no crash leaves behind.
base::UniqueFd script_file(const std::string& script) {
  base::UniqueFd file(::memfd_create("lockstep.sbatch", MFD_CLOEXEC));
  if (!file || ::write(file.get(), script.data(), script.size()) != static_cast<ssize_t>(script.size())) {
    throw ConfigError("slurm", fmt::format("cannot keep the script in memory: {}", std::strerror(errno)));
  }
  return file;
}

base::ProgramResult run_sbatch(const std::string& flag, const std::string& script,
                               const base::Environment& environment) {
  base::ProcessOptions options = slurm_program("sbatch", environment);
  const base::UniqueFd file = script_file(script);
  options.environment = without_job(environment);
  options.inherited_fds = {file.get()};
  options.arguments.push_back(flag);
  options.arguments.push_back(fmt::format("/proc/self/fd/{}", file.get()));
  const auto result = base::run_program(options, seconds(120));
  if (!result) throw ConfigError("slurm", "sbatch did not answer within two minutes");
  if (!result->state.success()) {
    throw ConfigError("slurm",
                      fmt::format("sbatch refused the script: {}", without_newlines(result->errors)));
  }
  return *result;
}

std::vector<JobRecord> ask_for_job(const std::string& job_id, const base::Environment& environment,
                                   std::string* errors) {
  base::ProcessOptions options = slurm_program("scontrol", environment);
  options.arguments.insert(options.arguments.end(), {"show", "job", job_id});
  const auto result = base::run_program(options, seconds(30));
  *errors = result ? without_newlines(result->errors) : "no answer within 30 s";
  if (!result || !result->state.success()) return {};
  return parse_job_records(result->output);
}

// Asks the controller about a job, and again while it is busy.
class JobWatch {
 public:
  JobWatch(const std::string& job_id, const base::Environment& environment)
      : job_id_(job_id), environment_(environment) {}

  // The records as they are now, or as they were when the controller last answered.
  const std::vector<JobRecord>& look() {
    std::string errors;
    std::vector<JobRecord> records = ask_for_job(job_id_, environment_, &errors);
    if (!records.empty()) {
      records_ = std::move(records);
      num_failed_ = 0;
    } else if (++num_failed_ >= kMaxFailedQueries || errors.find("Invalid job id") != std::string::npos) {
      throw ConfigError("slurm", fmt::format("job {} cannot be watched any more: {}", job_id_, errors));
    }
    return records_;
  }

 private:
  std::string job_id_;
  base::Environment environment_;
  std::vector<JobRecord> records_;
  int num_failed_ = 0;
};

bool all_ended(const std::vector<JobRecord>& records) {
  return !records.empty() &&
         std::all_of(records.begin(), records.end(), [](const JobRecord& record) { return record.ended(); });
}

// The logs of a job, or of all tasks of an array as they start.
class JobLogs {
 public:
  void add(const std::string& job_id, const std::vector<JobRecord>& records) {
    for (const JobRecord& record : records) {
      if (!record.has_log() || logs_.contains(record.log_path)) continue;
      base::log_info("slurm", "job {} writes {}", record.task.empty() ? job_id : job_id + "_" + record.task,
                     record.log_path);
      const std::string prefix = record.task.empty() ? "" : "[" + record.task + "]:";
      logs_.try_emplace(record.log_path, Log{LogFollower(record.log_path), prefix, ""});
    }
  }

  // Prints what was written since the last call, for tasks in whole lines; at the end all of it.
  void copy(bool all) {
    for (auto& [path, log] : logs_) {
      log.unshown += log.file.read_new();
      const size_t end = all || log.prefix.empty() ? log.unshown.size() : log.unshown.rfind('\n') + 1;
      show(log.prefix, std::string_view(log.unshown).substr(0, end));
      log.unshown.erase(0, end);
    }
    std::fflush(stdout);
  }

 private:
  struct Log {
    LogFollower file;
    std::string prefix;
    std::string unshown;
  };

  static void show(const std::string& prefix, std::string_view text) {
    if (prefix.empty()) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      return;
    }
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      fmt::print("{}{}\n", prefix, line);
      text.remove_prefix(std::min(line.size() + 1, text.size()));
    }
  }

  std::map<std::string, Log> logs_;  // by path: tasks may share one
};

}  // namespace

base::Environment without_job(const base::Environment& environment) {
  constexpr std::array<std::string_view, 6> kOfTheCluster{"SLURM_CONF",        "SLURM_CONF_SERVER",
                                                          "SLURM_CLUSTERS",    "SLURM_JWT",
                                                          "SLURM_TIME_FORMAT", "SLURM_DEBUG_FLAGS"};
  base::Environment result;
  for (const auto& [name, value] : environment.values()) {
    const bool of_a_job = name.rfind("SLURM", 0) == 0 || name.rfind("SRUN_", 0) == 0;
    const bool keeps = std::find(kOfTheCluster.begin(), kOfTheCluster.end(), name) != kOfTheCluster.end();
    if (!of_a_job || keeps) result.set(name, value);
  }
  return result;
}

std::string test_script(const std::string& script, const base::Environment& environment) {
  // sbatch answers on standard error.
  return run_sbatch("--test-only", script, environment).errors;
}

std::string submit_script(const std::string& script, const base::Environment& environment) {
  const base::ProgramResult result = run_sbatch("--parsable", script, environment);
  // "7", or "7;cluster" where a site has several.
  return result.output.substr(0, result.output.find_first_of(";\n"));
}

namespace {

int largest_status(const std::vector<JobRecord>& records) {
  int status = 0;
  for (const JobRecord& record : records) status = std::max(status, record.status());
  return status;
}

void cancel_job(const std::string& job_id, const base::Environment& environment) {
  base::ProcessOptions options = slurm_program("scancel", environment);
  options.arguments.push_back(job_id);
  base::run_program(options, seconds(30));
}

}  // namespace

JobResult wait_for_job(const std::string& job_id, const base::Environment& environment,
                       const std::function<bool()>& stop) {
  JobWatch watch(job_id, environment);
  milliseconds pause = kShortestPause;
  bool cancelled = false;
  while (true) {
    const std::vector<JobRecord>& records = watch.look();
    if (all_ended(records)) return {.status = largest_status(records), .seconds = records.front().seconds};
    for (milliseconds waited{0}; waited < pause; waited += kLogInterval) {
      if (!cancelled && stop()) {
        cancel_job(job_id, environment);
        cancelled = true;
      }
      std::this_thread::sleep_for(kLogInterval);
    }
    pause = std::min(pause * 3 / 2, kLongestPollPause);
  }
}

int follow_job(const std::string& job_id, const base::Environment& environment) {
  JobWatch watch(job_id, environment);
  JobLogs logs;
  milliseconds pause = kShortestPause;
  while (true) {
    const std::vector<JobRecord>& records = watch.look();
    logs.add(job_id, records);
    if (all_ended(records)) {
      logs.copy(/*all=*/true);
      return largest_status(records);
    }
    for (milliseconds waited{0}; waited < pause; waited += kLogInterval) {
      logs.copy(/*all=*/false);
      std::this_thread::sleep_for(kLogInterval);
    }
    pause = std::min(pause * 3 / 2, kLongestPollPause);
  }
}

}  // namespace lockstep::launcher
