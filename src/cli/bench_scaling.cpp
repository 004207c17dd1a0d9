#include <fmt/chrono.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "base/environment.h"
#include "base/file.h"
#include "base/process.h"
#include "cli/commands.h"
#include "cli/scaling/study.h"
#include "cluster/devices.h"
#include "cluster/node_resources.h"
#include "report/scaling.h"
#include "report/svg_plot.h"

namespace lockstep::cli {
namespace {

constexpr int kShellSignalStatus = 128;

std::string default_output() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return fmt::format("scaling_{:%Y%m%dT%H%M%S}_{:x}", local, ::getpid());
}

// Princeton's network, the training that their page asks it of.
std::vector<std::string> default_command(bool gpus) {
  return {base::own_executable(), "train", "mnist", "--data", "synthetic", "--epochs", "3", "--compute-setup",
          gpus ? "gpu" : "cpu"};
}

// Options of the jobs have no effect without jobs.
void check_job_options(const config::OptionTable& table, const scaling::Study& study) {
  if (!study.nodes.empty()) return;
  for (const char* name : {"partition", "account", "time", "sbatch_option"}) {
    if (!table.given(name)) continue;
    std::string flag = name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    throw ConfigError("bench", fmt::format("--{0} is for Slurm jobs: add --nodes, or leave out --{0}", flag));
  }
}

scaling::Study parse_study(int argc, const char* const* argv) {
  scaling::Study study{
      .nodes = {}, .ranks = {1, 2}, .cpus_per_rank = {1}, .job = {}, .command = {}, .output = {}};
  std::string output;
  constexpr double kMost = 1 << 16;
  config::OptionTable table(
      "Runs the same training with several numbers of ranks, CPUs, GPUs and nodes, and compares them.\n"
      "\n"
      "  lockstep bench scaling --ranks 1,2,4 --cpus-per-rank 1,2 -- ./train --max_iter 3\n"
      "  lockstep bench scaling --nodes 1,2 --ranks 4 --gpus -- ./train --max_iter 3\n"
      "\n"
      "Without a program: lockstep train mnist --data synthetic --epochs 3 --compute-setup cpu, or gpu with "
      "--gpus",
      config::kNoVariables);
  table
      .add("nodes", study.nodes, "numbers of nodes: each run is a Slurm job; left out: runs on this machine",
           {.several = true, .minimum = 1, .maximum = kMost})
      .add("ranks", study.ranks, "numbers of ranks; with --nodes of each node",
           {.several = true, .minimum = 1, .maximum = kMost})
      .add("gpus", study.gpus, "one GPU for each rank", {.negatable = false})
      .add("partition", study.job.partition, "of the jobs")
      .add("account", study.job.account, "of the jobs")
      .add("time", study.job.time, "time limit of each job: 90, 1:30:00")
      .add("sbatch_option", study.job.sbatch_options, "any other option of sbatch; may be repeated")
      .add("cpus_per_rank", study.cpus_per_rank, "CPUs, and threads, of each rank",
           {.several = true, .minimum = 1, .maximum = kMost})
      .add("output", output, "folder of the runs, the table and the page; left out: a new one here")
      .add("oversubscribe", study.oversubscribe, "also runs that need more CPUs than there are",
           {.negatable = false});
  study.command = table.parse_command(argv[0], {argv + 1, argv + argc});
  const std::string program = study.command.empty() ? "" : study.command[0];
  if (!program.empty() && program.find_first_not_of("0123456789") == std::string::npos) {
    throw ConfigError("bench",
                      fmt::format("the program is a number: '{}'. Write --ranks and --cpus-per-rank with "
                                  "commas: --ranks 1,2",
                                  program));
  }
  check_job_options(table, study);
  if (study.command.empty()) study.command = default_command(study.gpus);
  study.output = output.empty() ? default_output() : output;
  return study;
}

void say(const report::ScalingRow& row) {
  fmt::print("{}: {}\n", row.label(),
             row.succeeded() ? fmt::format("{:.0f} samples/s, {:.1f} s", row.samples_per_s, row.seconds)
                             : row.failure);
  std::fflush(stdout);
}

}  // namespace

// A training that fails is a row with the reason, and makes the status kExitFailure.
int run_bench_scaling(int argc, const char* const* argv) {
  const scaling::Study study = parse_study(argc, argv);
  const scaling::Machine machine{
      .cpus = scaling::spread_over_cores(cluster::affinity_cpus()),
      .num_gpus = study.gpus ? cluster::count_visible_gpus(base::Environment::of_process()) : 0};
  std::optional<int> stopped_by;
  report::Scaling result;
  result.command = study.command;
  result.host = cluster::host_name();
  result.cpus = static_cast<int>(machine.cpus.size());
  result.by_slurm = !study.nodes.empty();
  result.rows = run_study(study, machine, say, &stopped_by);
  fmt::print("\n{}\n", report::scaling_table(result));
  // An argument of the program may be any bytes.
  const std::string json = report::scaling_json(result).dump(
      Json::Print{.indent = 2, .order = Json::Order::kAsAdded, .replace_invalid = true});
  base::publish_file(study.output / "scaling.json", json + "\n");
  report::write_scaling_report(result, study.output / "report.html");
  for (const report::Chart& chart : report::scaling_charts(result)) {
    base::publish_file(study.output / (chart.id + ".svg"), report::plot_svg(chart));
  }
  fmt::print("Report: {}\n", (study.output / "report.html").string());
  if (stopped_by) return kShellSignalStatus + *stopped_by;
  const bool failed = std::any_of(result.rows.begin(), result.rows.end(), [](const report::ScalingRow& row) {
    return row.was_run && !row.succeeded();
  });
  return failed ? kExitFailure : kExitSuccess;
}

}  // namespace lockstep::cli
