#pragma once

#include <filesystem>
#include <string>

namespace lockstep::track {

// A server that keeps the files of runs in a folder answers with its path, and clients write there
// themselves. The server, or whoever answers in its place, shall not choose any other file.

// Whether the server's address is this machine's own: localhost or a loopback address.
bool is_on_this_machine(const std::string& tracking_uri);

// Where the file `name` of a run goes, below the run's folder as the server told it. ConfigError: the
// folder is none that MLflow makes, an absolute path that ends in RUN_ID/artifacts; the name leads out
// of it, or a link in it does.
std::filesystem::path place_in_run_folder(const std::filesystem::path& folder, const std::string& run_id,
                                          const std::string& name);

// ConfigError: a ".." is among the parts of the name of a run's file.
void check_artifact_name(const std::string& name);

}  // namespace lockstep::track
