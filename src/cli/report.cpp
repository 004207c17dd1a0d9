#include "cli/report.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "config/flag_words.h"
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
  CLI::App app("Writes one HTML page about a run, or about several side by side.", "lockstep report");
  app.footer("\nlockstep report runs/sine_* --output sine.html");
  app.add_option("run", options.runs, "folders of runs")->required();
  app.add_option("-o,--output", options.output,
                 "the page; left out: report.html in the folder of a single run, else here");
  app.add_option("--svg", options.svg, "also write each chart as NAME.svg into this folder");
  try {
    config::parse_words(app, {argv + 1, argv + argc});
  } catch (const CLI::CallForHelp&) {
    throw HelpRequested(app.help());
  } catch (const CLI::ParseError& error) {
    throw ConfigError("report", fmt::format("{}; lockstep report --help lists the flags", error.what()));
  }
  if (options.output.empty()) {
    options.output =
        options.runs.size() == 1 ? std::filesystem::path(options.runs[0]) / "report.html" : "report.html";
  }
  return options;
}

}  // namespace

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
