#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// `lockstep bench collectives`: time and bandwidth of each collective, size and
// backend between the ranks of a job, or between --nprocs processes started here.
// Sets *status when it ran.
void add_bench_collectives(CLI::App& bench, int* status);

}  // namespace lockstep::cli
