#include <fmt/format.h>
#include <lockstep/error.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "launcher/signal_queue.h"
#include "report/follow.h"
#include "report/report.h"

namespace lockstep::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::string output;
  std::string svg;
  bool follow = false;
  int port = 0;
};

ReportOptions parse_report(int argc, const char* const* argv) {
  ReportOptions options;
  config::OptionTable(
      "Writes one HTML page about a run, or about several side by side.\n"
      "\n"
      "  lockstep report runs/sine_* --output sine.html",
      config::kNoVariables)
      .add_argument("RUN", options.runs, "folders of runs", {.required = true})
      .add("output", options.output,
           "the page; left out: report.html in the folder of a single run, else here", {.short_flag = "o"})
      .add("svg", options.svg, "also write each chart as NAME.svg into this folder")
      .add("follow", options.follow,
           "serve the page on 127.0.0.1 while the runs go on, until Ctrl-C; it updates itself",
           {.negatable = false})
      .add("port", options.port, "of --follow; 0: a free one", {.minimum = 0, .maximum = 65535})
      .parse(argc, argv);
  if (options.follow && !(options.output.empty() && options.svg.empty())) {
    throw ConfigError("report", "--follow serves the page and writes no files: leave out --output and --svg");
  }
  if (options.output.empty()) {
    options.output =
        options.runs.size() == 1 ? std::filesystem::path(options.runs[0]) / "report.html" : "report.html";
  }
  return options;
}

// Serves until a signal asks to end: Ctrl-C is the usual end, and a success.
int follow(const std::vector<std::filesystem::path>& folders, int port) {
  launcher::SignalQueue signals({SIGINT, SIGTERM, SIGHUP});
  report::RunServer server(folders, static_cast<uint16_t>(port));
  fmt::print(
      "Report: {}\nCtrl-C ends it. From another machine: ssh -L PORT:127.0.0.1:PORT with the port "
      "above.\n",
      server.address());
  std::fflush(stdout);
  server.run(signals.fd());
  while (signals.next()) continue;  // a signal that nobody takes ends the process
  return kExitSuccess;
}

}  // namespace

// Writes a page about one run or several.
int run_report(int argc, const char* const* argv) {
  const ReportOptions options = parse_report(argc, argv);
  const std::vector<std::filesystem::path> folders(options.runs.begin(), options.runs.end());
  if (options.follow) return follow(folders, options.port);
  report::write_report(folders, options.output);
  fmt::print("Report: {}\n", options.output);
  if (!options.svg.empty()) {
    for (const auto& path : report::write_svgs(folders, options.svg))
      fmt::print("Chart: {}\n", path.string());
  }
  return kExitSuccess;
}

}  // namespace lockstep::cli
