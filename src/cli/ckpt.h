#pragma once

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// `lockstep ckpt ls|inspect|verify|export|import|diff`: looks at checkpoints and moves
// weights between them and Python's files. Sets *status when it ran: 1 when `verify`
// finds something broken or `diff` a difference.
void add_ckpt(CLI::App& app, int* status);

}  // namespace lockstep::cli
