#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// `lockstep doctor`: what this machine and this allocation can do, rank by rank.
// Under a launcher every rank reports and rank 0 prints; alone it reports itself
// and tries every backend between two ranks. Sets *status when it ran.
void add_doctor(CLI::App& app, int* status);

}  // namespace lockstep::cli
