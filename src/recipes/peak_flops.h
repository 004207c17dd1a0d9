#pragma once

#include <optional>
#include <string_view>

namespace lockstep::recipes {

// Floating-point operations per second of dense matrix products in bfloat16 or float16, by the data sheets,
// of a GPU with this name as CUDA prints it: "NVIDIA H100 PCIe". nullopt: an unknown device, or a part of
// one.
std::optional<double> peak_flops_of(std::string_view device);

}  // namespace lockstep::recipes
