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

// The modules of a model by name; "model" is the model itself. The modules of a Sequential follow each
// other; the order of others is unknown. `shapes` has the shapes of parameters that have no elements
// now, because they are sharded.
Graph model_graph(const torch::nn::Module& model, const Shapes& shapes = {});

}  // namespace lockstep::train
