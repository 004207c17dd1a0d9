#include <fmt/format.h>
#include <lockstep/error.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "report/report.h"

namespace lockstep::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::string output;
  std::string svg;
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
      .parse(argc, argv);
  if (options.output.empty()) {
    options.output =
        options.runs.size() == 1 ? std::filesystem::path(options.runs[0]) / "report.html" : "report.html";
  }
  return options;
}

}  // namespace

// Writes a page about one run or several.
int run_report(int argc, const char* const* argv) {
  const ReportOptions options = parse_report(argc, argv);
  const std::vector<std::filesystem::path> folders(options.runs.begin(), options.runs.end());
  report::write_report(folders, options.output);
  fmt::print("Report: {}\n", options.output);
  if (!options.svg.empty()) {
    for (const auto& path : report::write_svgs(folders, options.svg))
      fmt::print("Chart: {}\n", path.string());
  }
  return kExitSuccess;
}

}  // namespace lockstep::cli
