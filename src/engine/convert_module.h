#pragma once

#include <c10/core/ScalarType.h>

namespace torch::nn {
class Module;
}

namespace lockstep::engine {

// Floating-point parameters and buffers in this dtype, in place. Module::to(dtype) would
// convert index and mask buffers too.
void convert_floating_point(torch::nn::Module& module, c10::ScalarType dtype);

}  // namespace lockstep::engine
