#pragma once

#include <lockstep/tracker.h>

namespace torch::nn {
class Module;
}

namespace lockstep::train {

// The modules of a model by their names, "model" being the model itself. The modules of a
// Sequential follow each other; between others no order is known.
Graph model_graph(const torch::nn::Module& model);

}  // namespace lockstep::train
