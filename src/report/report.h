#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/run.h"

namespace lockstep::report {

// Reads several runs; runs of the same name get that of their parent folder before it. ConfigError: no
// folder, or a folder that is not a run.
std::vector<Run> read_runs(const std::vector<std::filesystem::path>& folders);

// The HTML page of one run, or of several runs side by side. `version`: see Page.
std::string run_page(std::vector<Run> runs, const std::string& version = "");

// Writes run_page() of these folders to a file, atomically. Missing, truncated and foreign files
// are listed on the page. ConfigError: a folder is not a run, or the output cannot be written.
void write_report(const std::vector<std::filesystem::path>& run_folders, const std::filesystem::path& output);

// Writes the page's charts as NAME.svg into a folder, which is created if it does not exist, and
// returns their paths. ConfigError as above.
std::vector<std::filesystem::path> write_svgs(const std::vector<std::filesystem::path>& run_folders,
                                              const std::filesystem::path& folder);

}  // namespace lockstep::report
