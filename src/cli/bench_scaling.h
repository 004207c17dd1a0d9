#pragma once

namespace lockstep::cli {

// `lockstep bench scaling --ranks 1,2 --cpus-per-rank 1 -- PROGRAM ...`: the same training
// with each number of ranks and CPUs, one after the other; a table, JSON and a page of what
// each was worth. argv[0] is "scaling". A run that fails is a row that says so, and then
// the status is kExitFailure. Throws HelpRequested, and ConfigError for bad flags.
int run_bench_scaling(int argc, const char* const* argv);

}  // namespace lockstep::cli
