#pragma once

#include <filesystem>
#include <vector>

namespace lockstep::report {

// Writes one self-contained HTML page about these runs. Files that are missing, cut off or
// foreign are said on the page and never stop it. The page appears whole or not at all.
// ConfigError: a folder that is no run, or an output that cannot be written.
void write_report(const std::vector<std::filesystem::path>& run_folders, const std::filesystem::path& output);

// Writes the page's charts as NAME.svg into a folder, which is made where it is not there.
// Returns their paths. ConfigError as above.
std::vector<std::filesystem::path> write_svgs(const std::vector<std::filesystem::path>& run_folders,
                                              const std::filesystem::path& folder);

}  // namespace lockstep::report
