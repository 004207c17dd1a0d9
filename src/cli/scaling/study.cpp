#include "cli/scaling/study.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "base/environment.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "cluster/cpu_binding.h"
#include "cluster/devices.h"
#include "launcher/signal_queue.h"
#include "launcher/slurm/submission.h"

namespace lockstep::cli::scaling {
namespace {

namespace fs = std::filesystem;
using report::ScalingRow;

constexpr std::string_view kFolderMark = "{folder}";

fs::path console_of(const ScalingRow& row) { return row.folder.string() + ".log"; }

std::vector<ScalingRow> plan_rows(const Study& study) {
  std::vector<ScalingRow> rows;
  const std::set<int> here{1};
  const std::set<int> nodes(study.nodes.begin(), study.nodes.end());
  for (const int count : nodes.empty() ? here : nodes) {
    for (const int ranks : std::set<int>(study.ranks.begin(), study.ranks.end())) {
      for (const int cpus : std::set<int>(study.cpus_per_rank.begin(), study.cpus_per_rank.end())) {
        ScalingRow row;
        row.nodes = count;
        row.ranks = count * ranks;
        row.cpus_per_rank = cpus;
        row.one_gpu_each = study.gpus;
        const std::string place = nodes.empty() ? "" : fmt::format("nodes-{}-", count);
        row.folder = fs::absolute(study.output) / fmt::format("{}ranks-{}-cpus-{}", place, row.ranks, cpus);
        rows.push_back(std::move(row));
      }
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ScalingRow& a, const ScalingRow& b) { return a.cpus() < b.cpus(); });
  return rows;
}

// A run that finds the checkpoints of another run resumes from them, and then measures nothing.
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

std::vector<std::string> command_of(const Study& study, const ScalingRow& row) {
  std::vector<std::string> command;
  for (const std::string& word : study.command) command.push_back(with_folder(word, row.folder));
  return command;
}

base::Environment with_run(base::Environment environment, const ScalingRow& row) {
  environment.set("LOCKSTEP_LOG_FOLDER", row.folder.string());
  environment.set("LOCKSTEP_PROGRESS", "none");
  environment.set("OMP_NUM_THREADS", std::to_string(row.cpus_per_rank));
  return environment;
}

// The first GPUs of those that this process sees.
std::string gpus_of(const ScalingRow& row, const base::Environment& environment) {
  const cluster::VisibleDevices visible =
      cluster::parse_visible_devices(environment.get("CUDA_VISIBLE_DEVICES"));
  std::vector<std::string> gpus;
  for (int i = 0; i < row.ranks; ++i) {
    gpus.push_back(visible.restricted ? visible.devices.at(static_cast<size_t>(i)) : std::to_string(i));
  }
  return fmt::format("{}", fmt::join(gpus, ","));
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

void finish_row(ScalingRow& row, const std::string& failure, const std::optional<int>& stopped_by) {
  if (stopped_by) {
    row.failure = "stopped";
  } else if (!failure.empty()) {
    const fs::path console = console_of(row);
    row.failure = fmt::format("failed, {}: {} ({})", failure, last_words(console), console.string());
  } else {
    report::measure_row(row);
  }
}

// As a Slurm job, whose duration is that of its record: without the time in the queue.
void submit_row(const Study& study, ScalingRow& row, launcher::SignalQueue& signals,
                std::optional<int>* stopped_by) {
  launcher::SbatchRequest request = study.job;
  request.command = command_of(study, row);
  request.nodes = row.nodes;
  request.ntasks_per_node = row.ranks / row.nodes;
  if (row.one_gpu_each) request.gpus_per_node = std::to_string(row.ranks / row.nodes);
  request.cpus_per_task = row.cpus_per_rank;
  request.output = console_of(row).string();
  request.launcher = base::own_executable();
  // sbatch passes the environment on.
  const base::Environment environment = with_run(base::Environment::of_process(), row);
  request.version = launcher::installed_slurm_version(environment);
  const std::string job = launcher::submit_script(launcher::sbatch_script(request), environment);
  const launcher::JobResult result = launcher::wait_for_job(job, environment, [&] {
    while (const std::optional<int> signal = signals.next()) *stopped_by = signal;
    return stopped_by->has_value();
  });
  row.seconds = result.seconds;
  finish_row(row, result.status == 0 ? "" : fmt::format("job {} ended with status {}", job, result.status),
             *stopped_by);
}

void run_row(const Study& study, ScalingRow& row, const Machine& machine, launcher::SignalQueue& signals,
             std::optional<int>* stopped_by) {
  const fs::path console = console_of(row);
  const base::UniqueFd log(::open(console.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!log) {
    throw ConfigError("bench", fmt::format("cannot write '{}': {}", console.string(), std::strerror(errno)));
  }
  const auto start = std::chrono::steady_clock::now();
  base::ChildProcess child =
      base::ChildProcess::start(process_of(study, row, machine, base::Environment::of_process(), log.get()));
  const base::ExitState state = wait_for(child, signals, stopped_by);
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  finish_row(row, state.success() ? "" : state.to_string(), *stopped_by);
}

// Why a row is not run here; "": it is.
std::string reason_to_skip(const Study& study, const ScalingRow& row, const Machine& machine) {
  if (!study.nodes.empty()) return "";
  if (row.one_gpu_each && row.ranks > machine.num_gpus)
    return fmt::format("left out: it needs {} GPU{}, and {} visible", row.ranks, row.ranks == 1 ? "" : "s",
                       machine.num_gpus == 1 ? "1 is" : fmt::format("{} are", machine.num_gpus));
  if (static_cast<size_t>(row.cpus()) > machine.cpus.size() && !study.oversubscribe)
    return fmt::format("left out: it needs {} CPUs, and there are {} (--oversubscribe runs it)", row.cpus(),
                       machine.cpus.size());
  return "";
}

}  // namespace

base::ProcessOptions process_of(const Study& study, const ScalingRow& row, const Machine& machine,
                                base::Environment environment, int fd) {
  base::ProcessOptions options;
  options.program = base::own_executable();
  options.arguments = {options.program, "run", "-n", std::to_string(row.ranks), "--standalone", "--"};
  for (std::string& word : command_of(study, row)) options.arguments.push_back(std::move(word));
  options.environment = with_run(std::move(environment), row);
  if (row.one_gpu_each) {
    options.environment.set("CUDA_VISIBLE_DEVICES", gpus_of(row, options.environment));
    options.environment.erase("GPUS_PER_NODE");  // of a batch script: it counts the hidden ones too
  }
  const size_t wanted = std::min(static_cast<size_t>(row.cpus()), machine.cpus.size());
  options.cpus.assign(machine.cpus.begin(), machine.cpus.begin() + static_cast<std::ptrdiff_t>(wanted));
  std::sort(options.cpus.begin(), options.cpus.end());
  options.stdout_fd = fd;
  options.stderr_fd = fd;
  return options;
}

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

std::vector<ScalingRow> run_study(const Study& study, const Machine& machine,
                                  const std::function<void(const ScalingRow&)>& done,
                                  std::optional<int>* stopped_by) {
  std::vector<ScalingRow> rows = plan_rows(study);
  prepare_output(study, rows);
  launcher::SignalQueue signals(launcher::stop_signals());
  for (ScalingRow& row : rows) {
    row.failure = *stopped_by ? "left out: the study was stopped" : reason_to_skip(study, row, machine);
    row.was_run = row.failure.empty();
    if (row.was_run && study.nodes.empty()) run_row(study, row, machine, signals, stopped_by);
    if (row.was_run && !study.nodes.empty()) submit_row(study, row, signals, stopped_by);
    done(row);
  }
  report::compare_rows(rows);
  return rows;
}

}  // namespace lockstep::cli::scaling
