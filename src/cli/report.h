#pragma once

namespace lockstep::cli {

// `lockstep report RUN... [--output FILE] [--svg DIR]`: a page about one run or several.
// argv[0] is "report". Throws HelpRequested, and ConfigError for bad flags, folders that
// are no runs and outputs that cannot be written.
int run_report(int argc, const char* const* argv);

}  // namespace lockstep::cli
