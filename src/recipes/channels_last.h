#pragma once

namespace torch::nn {
class Module;
}

namespace lockstep::recipes {

// Gives the weights of two-dimensional convolutions the layout in which a GPU computes
// them. Values and names stay as they are. Call it before an optimizer or a trainer has
// seen the parameters.
void use_channels_last(torch::nn::Module& module);

}  // namespace lockstep::recipes
