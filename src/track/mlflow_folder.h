#pragma once

#include <filesystem>
#include <string>

namespace lockstep::track {

// A server that keeps the files of runs in a folder answers with its path, and clients write there
// themselves. The checks below prevent that a server, or a program that answers in its place, chooses
// any other file.

// Whether the server's address is this machine's own: localhost or a loopback address.
bool is_on_this_machine(const std::string& tracking_uri);

// The path of the file `name` of a run, below the run's folder that the server sent. ConfigError: the
// folder is not one of MLflow's (an absolute path that ends in RUN_ID/artifacts), or the name or a link
// in the folder leads out of it.
std::filesystem::path place_in_run_folder(const std::filesystem::path& folder, const std::string& run_id,
                                          const std::string& name);

// ConfigError: a ".." is among the parts of the name of a run's file.
void check_artifact_name(const std::string& name);

}  // namespace lockstep::track
