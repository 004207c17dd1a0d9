#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "report/chart.h"
#include "report/report.h"
#include "report/run.h"
#include "report/svg_plot.h"
#include "support/fuzz/finding.h"
#include "support/temporary_folder.h"

namespace lockstep::fuzz {

// A run in whose folder every file has these bytes. Whatever they are, there is a page.
inline bool takes_report(std::string_view bytes) {
  static const test::TemporaryFolder folder("/dev/shm");
  for (const char* name :
       {"metrics.csv", "metrics.jsonl", "config.json", "config_defaults.json", "ranks.json", "gpu.csv"}) {
    std::ofstream(folder.path() / name, std::ios::binary) << bytes;
  }
  const std::vector<report::Run> runs = {report::read_run(folder.path())};
  require(!report::run_page(runs).empty(), "there is a page");
  std::vector<std::string> remarks;
  const std::vector<report::Chart> charts = report::charts_of(runs, remarks);
  for (const report::Chart& chart : charts) {
    require(report::plot_svg(chart).find("</svg>") != std::string::npos, "there is a picture");
  }
  return !charts.empty();
}

}  // namespace lockstep::fuzz
