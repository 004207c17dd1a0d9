#pragma once

#include <lockstep/track.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::train {

using Shapes = std::map<std::string, std::vector<int64_t>>;

// The modules of a model by their names, "model" being the model itself. The modules of a
// Sequential follow each other; between others no order is known. `shapes`: of parameters that
// have no elements now, because they are divided.
Graph model_graph(const torch::nn::Module& model, const Shapes& shapes = {});

}  // namespace lockstep::train
