#pragma once

namespace CLI {
class App;
}

namespace lockstep::cli {

// `lockstep plan MODEL`: what training takes of each rank, without training.
void add_plan(CLI::App& app, int* status);

}  // namespace lockstep::cli
