#include "cli/scaling/study.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <set>

#include "base/environment.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "cluster/cpu_binding.h"
#include "launcher/signal_queue.h"

namespace lockstep::cli::scaling {
namespace {

namespace fs = std::filesystem;
using report::ScalingRow;

constexpr std::string_view kFolderMark = "{folder}";

fs::path console_of(const ScalingRow& row) { return row.folder.string() + ".log"; }

std::vector<ScalingRow> plan_rows(const Study& study) {
  std::vector<ScalingRow> rows;
  for (const int ranks : std::set<int>(study.ranks.begin(), study.ranks.end())) {
    for (const int cpus : std::set<int>(study.cpus_per_rank.begin(), study.cpus_per_rank.end())) {
      ScalingRow row;
      row.ranks = ranks;
      row.cpus_per_rank = cpus;
      row.folder = fs::absolute(study.output) / fmt::format("ranks-{}-cpus-{}", ranks, cpus);
      rows.push_back(std::move(row));
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ScalingRow& a, const ScalingRow& b) { return a.cpus() < b.cpus(); });
  return rows;
}

// A run that finds another's checkpoints goes on from them, and measures nothing.
void prepare_output(const Study& study, const std::vector<ScalingRow>& rows) {
  std::error_code error;
  fs::create_directories(study.output, error);
  if (error) {
    throw ConfigError("bench", fmt::format("cannot make the folder of the study, {}: '{}'", error.message(),
                                           study.output.string()));
  }
  std::vector<fs::path> made = {study.output / "scaling.json"};
  for (const ScalingRow& row : rows) made.push_back(row.folder);
  for (const fs::path& path : made) {
    if (fs::exists(path, error)) {
      throw ConfigError(
          "bench",
          fmt::format("a study is there already, choose another --output or remove it: '{}'", path.string()));
    }
  }
}

std::string with_folder(std::string word, const fs::path& folder) {
  for (size_t at = word.find(kFolderMark); at != std::string::npos; at = word.find(kFolderMark, at)) {
    word.replace(at, kFolderMark.size(), folder.string());
    at += folder.string().size();
  }
  return word;
}

base::ProcessOptions process_of(const Study& study, const ScalingRow& row, const std::vector<int>& cpus,
                                int fd) {
  base::ProcessOptions options;
  options.program = base::own_executable();
  options.arguments = {options.program, "run", "-n", std::to_string(row.ranks), "--standalone", "--"};
  for (const std::string& word : study.command) options.arguments.push_back(with_folder(word, row.folder));
  options.environment = base::Environment::of_process();
  options.environment.set("LOCKSTEP_LOG_FOLDER", row.folder.string());
  options.environment.set("LOCKSTEP_PROGRESS", "none");
  options.environment.set("OMP_NUM_THREADS", std::to_string(row.cpus_per_rank));
  const size_t wanted = std::min(static_cast<size_t>(row.cpus()), cpus.size());
  options.cpus.assign(cpus.begin(), cpus.begin() + static_cast<std::ptrdiff_t>(wanted));
  std::sort(options.cpus.begin(), options.cpus.end());
  options.stdout_fd = fd;
  options.stderr_fd = fd;
  return options;
}

// The last line that says something, for a row of a table.
std::string last_words(const fs::path& console) {
  std::ifstream file(console);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  }
  constexpr size_t kMost = 160;
  return last.size() > kMost ? last.substr(0, kMost) + "..." : last;
}

// Waits for the end; a signal is passed on, and the run that it ends is waited for.
base::ExitState wait_for(base::ChildProcess& child, launcher::SignalQueue& signals,
                         std::optional<int>* stopped_by) {
  while (!child.poll_exit()) {
    pollfd fds[] = {{child.exit_fd(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    ::poll(fds, 2, -1);
    while (const std::optional<int> signal = signals.next()) {
      *stopped_by = signal;
      child.notify(*signal);
    }
  }
  return child.exit_state();
}

void run_row(const Study& study, ScalingRow& row, const std::vector<int>& cpus,
             launcher::SignalQueue& signals, std::optional<int>* stopped_by) {
  const fs::path console = console_of(row);
  const base::UniqueFd log(::open(console.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!log) {
    throw ConfigError("bench", fmt::format("cannot write '{}': {}", console.string(), std::strerror(errno)));
  }
  const auto start = std::chrono::steady_clock::now();
  base::ChildProcess child = base::ChildProcess::start(process_of(study, row, cpus, log.get()));
  const base::ExitState state = wait_for(child, signals, stopped_by);
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (*stopped_by) {
    row.failure = "stopped";
  } else if (!state.success()) {
    row.failure =
        fmt::format("failed, {}: {} ({})", state.to_string(), last_words(console), console.string());
  } else {
    report::measure_row(row);
  }
}

}  // namespace

std::vector<int> spread_over_cores(const std::vector<int>& cpus, const std::string& sysfs) {
  std::vector<int> first;
  std::vector<int> others;
  std::set<int> cores;
  for (const cluster::LogicalCpu& cpu : cluster::read_cpu_topology(cpus, sysfs)) {
    (cores.insert(cpu.core).second ? first : others).push_back(cpu.id);
  }
  first.insert(first.end(), others.begin(), others.end());
  return first;
}

std::vector<ScalingRow> run_study(const Study& study, const std::vector<int>& cpus,
                                  const std::function<void(const ScalingRow&)>& done,
                                  std::optional<int>* stopped_by) {
  std::vector<ScalingRow> rows = plan_rows(study);
  prepare_output(study, rows);
  launcher::SignalQueue signals(launcher::stop_signals());
  for (ScalingRow& row : rows) {
    if (*stopped_by) {
      row.was_run = false;
      row.failure = "left out: the study was stopped";
    } else if (static_cast<size_t>(row.cpus()) > cpus.size() && !study.oversubscribe) {
      row.was_run = false;
      row.failure = fmt::format("left out: it needs {} CPUs, and there are {} (--oversubscribe runs it)",
                                row.cpus(), cpus.size());
    } else {
      run_row(study, row, cpus, signals, stopped_by);
    }
    done(row);
  }
  report::compare_rows(rows);
  return rows;
}

}  // namespace lockstep::cli::scaling
